"""A `netreplay serve` in a process of its own, for tests: started on a free port, ended whatever happens.

Servers are forked from a process that has imported what they need, so that one starts in some milliseconds.
"""

from __future__ import annotations

import ctypes
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


def _serve(arguments: list[str], log: str, namespace: str) -> None:
    """The command, in the server's process."""
    from netreplay.cli import main

    if namespace:
        enter_namespace(f"/run/netns/{namespace}")

    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)
    main(["serve", *arguments])


def enter_namespace(path: str) -> None:
    """Moves this thread, and those that it starts, to another network namespace (setns(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(path).open("rb") as file:
        if libc.setns(file.fileno(), 0x40000000) != 0:  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), "setns", path)


class ServerProcess:
    """`url` is its (first) address. `restart()` starts another at the same address, as after a crash.

    `port` is a [port.NAME] part that it serves on instead of `listen`, in a network namespace.
    """

    def __init__(
        self,
        toml: str,
        folder: Path,
        *,
        listen: str | list[str] = "udp://127.0.0.1:0",
        port: str = "",
        namespace: str = "",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "server.toml"
        self._port, self._namespace = port, namespace
        self.configure(toml)
        self._ready = folder / "ready"
        self._log = folder / "log"
        self._listen = [] if port else [listen] if isinstance(listen, str) else listen
        self.process: BaseProcess | None = None
        self.urls: list[str] = []

    def start(self) -> None:
        self._ready.unlink(missing_ok=True)
        arguments = ["-c", str(self._config), "--auth", "off"]
        for address in self._listen:
            arguments += ["--listen", address]
        arguments += ["--ready-file", str(self._ready)]
        self.process = _context.Process(target=_serve, args=(arguments, str(self._log), self._namespace))
        self.process.start()
        wait_until(lambda: self._ready.exists() or not self.process.is_alive(), "the server is ready")
        if not self._ready.exists():
            raise AssertionError(f"the server ended: {self.log()}")
        self.urls = self._ready.read_text().splitlines()
        if not self._port:
            self._listen = self.urls

    def configure(self, toml: str) -> None:
        """The spec of the next start."""
        self._config.write_text(f"{toml}\n{self._port}")

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
