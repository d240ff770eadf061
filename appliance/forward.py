"""`netreplay forward`: a seeded bad network in front of a server, for tests of what depends on one."""

from __future__ import annotations

import errno
import signal
import threading
from types import FrameType
from typing import Any

import click

from netreplay import address as addresses
from netreplay._binding import ffi, lib
from netreplay.address import host_port, split_host_port
from netreplay.appliance.server import way_out
from netreplay.errors import BadAddressError, SystemRefusedError

_SHARE = click.FloatRange(0.0, 1.0)


@click.command()
@click.argument("url")
@click.option("--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Where clients connect.")
@click.option("--loss", default=0.0, type=_SHARE, help="Share of datagrams lost, each way.")
@click.option("--duplicate", default=0.0, type=_SHARE, help="Share that comes twice.")
@click.option("--reorder", default=0.0, type=_SHARE, help="Share that is overtaken by others.")
@click.option("--corrupt", default=0.0, type=_SHARE, help="Share with one byte changed.")
@click.option(
    "--delay", default=0.0, type=click.FloatRange(0.0, 10_000.0), help="Milliseconds added to every datagram."
)
@click.option(
    "--jitter", default=0.0, type=click.FloatRange(0.0, 10_000.0), help="Milliseconds added besides, 0 to this."
)
@click.option("--rate", default=0, type=click.IntRange(0), help="Bytes per second each way; 0 is no limit.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**64 - 1), help="Of every decision.")
def forward(
    url: str,
    listen: str,
    loss: float,
    duplicate: float,
    reorder: float,
    corrupt: float,
    delay: float,
    jitter: float,
    rate: int,
    seed: int,
) -> None:
    """Forward UDP to the server at URL, badly: the same seed always drops the same datagrams of a client."""
    server = addresses.parse(url)
    if server.scheme != "udp":
        raise BadAddressError(f"{url}: only a udp:// server can be forwarded to", value=url)
    host, port = split_host_port(listen)
    config = ffi.new("struct nr_forwarder_config *")
    names = ffi.new("char[]", host.encode()), ffi.new("char[]", server.host.encode())
    config.listen_host, config.server_host = names
    config.listen_port, config.server_port, config.seed = port, server.port, seed
    for faults in config.faults:
        faults.loss, faults.duplicate, faults.reorder, faults.corrupt = loss, duplicate, reorder, corrupt
        faults.delay_ns, faults.jitter_ns, faults.rate = int(delay * 1e6), int(jitter * 1e6), rate
    error = ffi.new("int *")
    forwarder = lib.nr_forwarder_open(config, error)
    if forwarder == ffi.NULL:
        number = -int(error[0])
        if number == errno.ENOENT:
            raise BadAddressError(f"{listen} or {url}: no such address or name", value=(listen, url))
        refusal = SystemRefusedError(f"{listen}: cannot forward to {url}: {way_out(number)}")
        refusal.errno = number
        raise refusal
    _run(forwarder, host, url)


def _run(forwarder: Any, host: str, url: str) -> None:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        lib.nr_forwarder_stop(forwarder)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    thread = threading.Thread(target=lib.nr_forwarder_run, args=(forwarder,), name="netreplay-forwarder", daemon=True)
    thread.start()
    here = host_port(host, int(lib.nr_forwarder_port(forwarder)))
    click.echo(f"netreplay: forwarding udp://{here} to {url}: ready")
    thread.join()
    for direction, name in ((lib.NR_FORWARDER_TO_SERVER, "to the server"), (lib.NR_FORWARDER_TO_CLIENT, "to clients")):
        counters = ffi.new("struct nr_forwarder_counters *")
        lib.nr_forwarder_counters(forwarder, direction, counters)
        keys = ("received", "forwarded", "lost", "duplicated", "reordered", "corrupted", "overflowed")
        click.echo(f"netreplay: {name}: " + ", ".join(f"{getattr(counters, key)} {key}" for key in keys))
    lib.nr_forwarder_close(forwarder)
