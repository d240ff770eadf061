"""`netreplay serve` for the benches: PATH ARGUMENTS. PATH "tcp": what would listen on UDP does on the test-only TCP."""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1  # prctl(2)


def serve(path: str, arguments: list[str]) -> None:
    from netreplay.appliance import server
    from netreplay.cli import main

    if path == "tcp":
        real = server.lib

        class Lib:
            def __getattr__(self, name: str) -> Any:
                return getattr(real, "nr_binding_listen_tcp" if name == "nr_binding_listen_udp" else name)

        server.lib = Lib()
    main(["serve", *arguments])


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it may be stopped when the bench dies
    serve(sys.argv[1], sys.argv[2:])
