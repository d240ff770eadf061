"""The child's side of the supervisor: to end with it, to stop when told, to tell it things.

`python -m netreplay.clients.demo.child PARENT serve ...` is `netreplay serve ...` that ends with its parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from types import FrameType

from netreplay.clients.demo.config import Config
from netreplay.clients.demo.messages import Message, encode

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Lets the kernel kill this process when `parent`, its parent, ends however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(1)


class Child:
    """This process as an actor or the learner: its configuration, whether to stop, and the way to the supervisor."""

    def __init__(self, arguments: list[str]) -> None:
        """`arguments`: the supervisor's pid, the file descriptor of its pipe, the configuration as JSON."""
        die_with(int(arguments[0]))
        self._pipe = int(arguments[1])
        self.config = Config.from_json(arguments[2])
        self._stop = threading.Event()
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """Whether the supervisor wants this process to end."""
        return self._stop.is_set()

    def sleep(self, seconds: float) -> bool:
        """Waits so long, or until it is to stop; whether it is."""
        return self._stop.wait(seconds)

    def tell(self, message: Message) -> None:
        """Sends a message to the supervisor."""
        line = memoryview(encode(message))
        while line:
            line = line[os.write(self._pipe, line) :]


class Every:
    """True once per `seconds`, whatever happens in between."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = time.monotonic() + seconds

    def __bool__(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


def main(arguments: list[str]) -> None:
    """`PARENT COMMAND...`: the netreplay command, as long as its parent lives."""
    die_with(int(arguments[0]))
    from netreplay.cli import main as netreplay

    netreplay(arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
