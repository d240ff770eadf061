"""A process of the demo as its supervisor sees it: started, listened to, ended; by its pid and no other way."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from netreplay.clients.demo.messages import Message, decode

_CHUNK = 1 << 16

Command = Callable[[int], list[str]]
"""the arguments of the Python interpreter, given the file descriptor to write messages to"""


def how_ended(code: int) -> str:
    """A return code of subprocess in words: "killed by SIGKILL", "ended with code 1"."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


class Process:
    """One that can be started again. What it prints goes to its log file."""

    def __init__(self, name: str, command: Command, log: Path) -> None:
        self.name, self.log = name, log
        self._command = command
        self._popen: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._rest = b""

    def start(self) -> int:
        """Starts it; its pid. It is in a process group of its own, so that Ctrl-C reaches the supervisor alone."""
        self.close()
        pipe, theirs = os.pipe()
        try:
            with self.log.open("ab") as log:
                self._popen = subprocess.Popen(
                    [sys.executable, "-P", *self._command(theirs)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[theirs],
                    process_group=0,
                    env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
                )
        except BaseException:
            os.close(pipe)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(pipe, False)
        self._pipe = pipe
        return self._popen.pid

    @property
    def pipe(self) -> int | None:
        """File descriptor that becomes readable when messages are there; None when the process has closed its end."""
        return self._pipe

    @property
    def code(self) -> int | None:
        """None while it runs, else its return code, negative for a signal."""
        return None if self._popen is None else self._popen.poll()

    def messages(self) -> list[Message]:
        """The whole messages that have arrived."""
        while self._pipe is not None:
            try:
                chunk = os.read(self._pipe, _CHUNK)
            except BlockingIOError:
                break
            if not chunk:
                self._close_pipe()
                break
            self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        return [decode(line) for line in lines]

    def last_words(self) -> str:
        """The last line of its log that says something."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def terminate(self) -> None:
        """Asks it to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._popen is not None:
            with contextlib.suppress(ProcessLookupError):
                self._popen.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Waits so long for its end; whether it came."""
        if self._popen is None:
            return True
        try:
            self._popen.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Ends it if it runs, and forgets it."""
        if self._popen is not None:
            if self._popen.poll() is None:
                self.kill()
            self._popen.wait()
            self._popen = None
        self._close_pipe()
        self._rest = b""

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
