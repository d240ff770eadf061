"""A `netreplay serve` in a process of its own, for tests: started on a free port, ended whatever happens.

Servers are forked from a process that has imported what they need, so that one starts in some milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

PATIENCE = 20.0
"""seconds until what should be quick counts as hung, on a machine that has other things to do"""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["__main__", "netreplay.cli", "netreplay.appliance.serve"])


def wait_until(condition, what: str, seconds: float = PATIENCE) -> None:
    """Waits for a condition; fails with what it was."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds} s still not: {what}")
        time.sleep(0.005)


def _serve(arguments: list[str], log: str) -> None:
    """The command, in the server's process."""
    from netreplay.cli import main

    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)
    main(["serve", *arguments])


class ServerProcess:
    """`url` is its (first) address. `restart()` starts another at the same address, as after a crash."""

    def __init__(self, toml: str, folder: Path, *, listen: str | list[str] = "udp://127.0.0.1:0") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / "server.toml"
        self.config.write_text(toml)
        self._ready = folder / "ready"
        self._log = folder / "log"
        self._listen = [listen] if isinstance(listen, str) else listen
        self.process: BaseProcess | None = None
        self.urls: list[str] = []

    def start(self) -> None:
        self._ready.unlink(missing_ok=True)
        arguments = ["-c", str(self.config), "--auth", "off"]
        for address in self._listen:
            arguments += ["--listen", address]
        arguments += ["--ready-file", str(self._ready)]
        self.process = _context.Process(target=_serve, args=(arguments, str(self._log)))
        self.process.start()
        wait_until(lambda: self._ready.exists() or not self.process.is_alive(), "the server is ready")
        if not self._ready.exists():
            raise AssertionError(f"the server ended: {self.log()}")
        self._listen = self.urls = self._ready.read_text().splitlines()

    @property
    def url(self) -> str:
        return self.urls[0]

    def log(self) -> str:
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def stop(self) -> None:
        """Stops it in the sense of SIGSTOP, and waits until it is; `go_on()` lets it."""
        self.signal(signal.SIGSTOP)
        status = Path(f"/proc/{self.process.pid}/stat")
        wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "the server is stopped")

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def wait(self, seconds: float = PATIENCE) -> int:
        assert self.process is not None
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"the server did not end: {self.log()}"
        return self.process.exitcode

    def kill(self) -> None:
        """As a crash would."""
        self.signal(signal.SIGKILL)
        self.wait()

    def restart(self) -> None:
        self.start()

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is None or not self.process.is_alive():
            return
        self.process.terminate()
        self.process.join(5.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            raise AssertionError(f"the server did not end on SIGTERM: {self.log()}")
