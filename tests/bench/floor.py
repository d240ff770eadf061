"""The floor of a blocking call: a UDP echo between two Python processes, one datagram each way, of the same bytes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

_SERVER = """
import os, socket, sys
core, answer = int(sys.argv[1]), bytes(int(sys.argv[2]))
if core >= 0:
    os.sched_setaffinity(0, {core})
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
buffer = bytearray(65536)
while True:
    size, peer = server.recvfrom_into(buffer)
    server.sendto(answer, peer)
"""


def cores() -> tuple[int, int]:
    """The cores that client and server are pinned to, the same for floor and subject; -1: not pinned."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else (-1, -1)


@contextmanager
def echo(request_bytes: int, response_bytes: int):
    """exchange(): sends so many bytes, waits for so many."""
    command = [sys.executable, "-c", _SERVER, str(cores()[1]), str(response_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline())
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.connect(("127.0.0.1", port))
                client.settimeout(5.0)
                request, buffer = bytes(request_bytes), bytearray(65536)

                def exchange():
                    client.send(request)
                    client.recv_into(buffer)

                yield exchange
        finally:
            process.kill()


def microseconds(call, rounds: int, warm: int = 200) -> list[float]:
    """The times of so many calls."""
    for _ in range(warm):
        call()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begin) / 1000)
    return times
