"""An actor's or the learner's side of the supervisor: to stop when told, to tell it things."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

from netreplay.clients.demo.config import Config
from netreplay.clients.demo.messages import Message, encode


class Child:
    """This process as an actor or the learner: its configuration, whether to stop, and the way to the supervisor."""

    def __init__(self, arguments: list[str]) -> None:
        """`arguments`: the file descriptor of the supervisor's pipe, the configuration as JSON."""
        self._pipe = int(arguments[0])
        self.config = Config.from_json(arguments[1])
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
