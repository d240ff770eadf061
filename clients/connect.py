"""connect(): from an address to a Replay."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from netreplay import address as addresses
from netreplay._binding import check, ffi, lib, wait_slices
from netreplay._engine import create, plan
from netreplay.address import Address
from netreplay.clients.arguments import seconds, shown, whole
from netreplay.clients.handle import Handle
from netreplay.clients.reasons import vhost_refusal
from netreplay.clients.replay import Replay
from netreplay.errors import (
    BadAddressError,
    BadConfigError,
    NotYetError,
    RefusedError,
    SpecError,
    Timeout,
    TooManyError,
)
from netreplay.spec import Spec
from netreplay.spec_json import compare_specs

_POLLS = {"adaptive": "NR_POLL_ADAPTIVE", "busy": "NR_POLL_BUSY"}


def connect(
    url: str,
    *,
    key: str | bytes | None = None,
    auth: str | None = None,
    spec: Spec | None = None,
    timeout: float = 10.0,
    poll: str = "adaptive",
    seed: int | None = None,
) -> Replay:
    """Opens a replay memory.

    `url` is "vhost:///path/to.sock" (a server on this host, over shared memory), "udp://host:port" (port 7447 unless
    said, IPv6 in brackets), "local:file.toml", or "local:" with spec=. Until keys are there, udp:// wants auth="off"
    written out, as in the server's config; a vhost socket is guarded by its file's mode. A spec= given for a server is
    compared with the server's, and SpecError names the first difference. `timeout` (seconds) is that of connecting
    and the default of the calls that take one. `poll` is "adaptive" (spins briefly, then sleeps) or "busy".
    `seed` (0 to 2^64 - 1, for "local:" only) makes the draws those of every run of the same calls; None: another each
    time.
    """
    address = addresses.parse(url)
    if spec is not None and not isinstance(spec, Spec):
        raise SpecError(f"spec: {type(spec).__name__} is not a Spec; Spec.from_toml reads one", path="spec", value=spec)
    if not isinstance(poll, str) or poll not in _POLLS:
        raise BadConfigError(f"poll: {shown(poll)} is not one of {', '.join(_POLLS)}", value=poll)
    timeout = seconds(timeout)
    if key is not None:
        raise NotYetError("key: authentication is not there yet; leave key= out and write auth='off' on both sides")
    if auth not in (None, "off"):
        raise BadConfigError(f"auth: {auth!r} is not 'off', the only choice until keys are there", value=auth)
    if seed is not None:
        if address.scheme != "local":
            raise BadConfigError(f"seed: {shown(seed)} is for local: only; a server draws its own", value=seed)
        seed = whole(seed, "seed", 0, 2**64 - 1)
    if address.scheme == "local":
        return _local(address, url, spec, timeout, seed)
    if auth is None and address.scheme == "udp":
        raise RefusedError(
            "auth: udp:// without a key must be chosen: pass auth='off' as in the server's config (closed networks)"
        )
    return _server(address, url, spec, timeout, poll)


def reconnect(url: str, arguments: dict[str, Any]) -> Replay:
    """What unpickling a Replay does."""
    return connect(url, **arguments)


def _local(address: Address, url: str, spec: Spec | None, timeout: float, seed: int | None) -> Replay:
    if spec is None:
        if not address.path:
            raise BadAddressError(
                "address 'local:': names no TOML file; write local:file.toml, or pass spec=", value=url
            )
        spec = Spec.from_toml(Path(address.path))
    elif address.path:
        raise BadAddressError(
            f"address {url!r}: names a TOML file, and spec= is given too; one of them is wanted", value=url
        )
    planned = plan(spec, seed=seed)
    engine, _ = create(planned)
    status = ffi.new("int *")
    text = planned.spec.to_json().encode()
    ptr = lib.nr_replay_local(engine, planned.config, ffi.new("char[]", text), status)
    if ptr == ffi.NULL:
        lib.nr_engine_destroy(engine)
        check(status[0] or lib.NR_NO_MEMORY, url)
    handle = Handle(ptr, address, timeout)
    handle.plan = planned
    return Replay(handle, url, {"spec": spec, "timeout": timeout})


def _server(address: Address, url: str, spec: Spec | None, timeout: float, poll: str) -> Replay:
    options = ffi.new("struct nr_connect_options *")
    options.poll = getattr(lib, _POLLS[poll])
    status = ffi.new("int *")
    if address.scheme == "vhost":
        ptr = lib.nr_replay_vhost(ffi.new("char[]", os.fsencode(address.path)), options, status)
    else:
        ptr = lib.nr_replay_udp(ffi.new("char[]", address.host.encode()), address.port, options, status)
    if ptr == ffi.NULL:
        check(status[0] or lib.NR_SYSTEM, f"{url}: cannot be reached from here")
    handle = Handle(ptr, address, timeout)
    try:
        blocked = ffi.new("struct nr_blocked *")

        def explain(seconds: float) -> Timeout:
            lib.nr_replay_blocked(ptr, blocked)
            return handle.explain("connect", blocked, seconds)

        def step(wait_ns: int) -> int:
            status = int(lib.nr_replay_ready(ptr, wait_ns))
            if status == lib.NR_PENDING and address.scheme == "vhost":
                lib.nr_replay_blocked(ptr, blocked)
                refusal = vhost_refusal(url, blocked.unreachable)
                if refusal is not None:
                    raise refusal
            return status

        final = wait_slices(step, timeout, explain)
        if final == lib.NR_TOO_MANY:
            raise TooManyError(
                f"connect to {url}: the server has as many sessions as it may have; close some, or raise "
                "server.sessions in its config",
                field="server.sessions",
            )
        handle.fail(final, f"connect to {url}")
        theirs = Spec.from_json(ffi.string(lib.nr_replay_spec(ptr)).decode("utf-8", "replace"))
        difference = None if spec is None else compare_specs(spec, theirs)
        if difference is not None:
            raise SpecError(f"spec: differs from that of {url} (yours, the server's): {difference}", path=difference)
        handle.plan = plan(theirs)
        check(lib.nr_replay_layout(ptr, handle.plan.config), f"{url}: the server's layout is refused")
    except BaseException:
        handle.close()
        raise
    arguments = {
        "auth": "off" if address.scheme == "udp" else None,
        "spec": None if spec is None else replace(spec),
        "timeout": timeout,
        "poll": poll,
    }
    return Replay(handle, url, arguments)
