"""A `netreplay serve` in a process of its own, for tests: started on a free port, ended whatever happens."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 20.0
"""seconds until what should be quick counts as hung, on a machine that has other things to do"""


def wait_until(condition, what: str, seconds: float = PATIENCE) -> None:
    """Waits for a condition; fails with what it was."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds} s still not: {what}")
        time.sleep(0.005)


class ServerProcess:
    """`url` is its address. `restart()` starts another on the same port, as after a crash."""

    def __init__(self, toml: str, folder: Path, *, listen: str = "127.0.0.1:0") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / "server.toml"
        self.config.write_text(toml)
        self._ready = folder / "ready"
        self._log = folder / "log"
        self._listen = listen
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "netreplay.cli", "serve", "-c", str(self.config), "--auth", "off"]
        command += ["--listen", self._listen, "--ready-file", str(self._ready)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(lambda: self._ready.exists() or self.process.poll() is not None, "the server is ready")
        if not self._ready.exists():
            raise AssertionError(f"the server ended: {self.log()}")
        self.url = self._ready.read_text().strip()
        self._listen = self.url.removeprefix("udp://")

    def log(self) -> str:
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

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
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not end on SIGTERM: {self.log()}") from None
