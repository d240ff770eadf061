"""`python -m netreplay.clients.demo.start PARENT MODULE ARGUMENT...`: a main() whose process ends with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from importlib import import_module

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Lets the kernel kill this process when `parent`, its parent, ends however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(1)


def main(arguments: list[str]) -> None:
    """Before anything that takes its time: an actor or the learner takes seconds to import."""
    parent, module, *rest = arguments
    die_with(int(parent))
    import_module(module).main(rest)


if __name__ == "__main__":
    main(sys.argv[1:])
