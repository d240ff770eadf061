"""A server's counters in a file, for whoever watches it from outside: it outlives a server that is killed."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

from netreplay.appliance.server import Server
from netreplay.errors import BadConfigError

PERIOD = 0.5
"""seconds between two writes"""


class StatsFile:
    """JSON: pid, seconds served, `server` (ServerCounters), `tables` (TableInfo by name). Replaced as a whole."""

    def __init__(self, path: Path, server: Server) -> None:
        """Writes it once; BadConfigError when it cannot be written."""
        self._path, self._server = path, server
        self._partial = path.with_name(path.name + ".partial")
        self._begin = time.monotonic()
        try:
            self._write()
        except OSError as error:
            raise BadConfigError(f"--stats-file: {path}: {error.strerror}", value=str(path)) from None

    def keep(self) -> None:
        """Replaces it until the server's loop ends, and a last time. A full disk costs a write and not the server."""
        ended = False
        while not ended:
            ended = self._server.wait(PERIOD)
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        stats = {
            "pid": os.getpid(),
            "seconds": round(time.monotonic() - self._begin, 3),
            "server": self._server.counters()._asdict(),
            "tables": {name: info._asdict() for name, info in self._server.tables().items()},
        }
        self._partial.write_text(json.dumps(stats) + "\n", encoding="ascii")
        self._partial.replace(self._path)
