"""The behaviour suite runs over every way to reach a memory: in this process, over shared memory, over kernel UDP."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from serving import ServerProcess
from topology.hosts import Network, two_hosts

import netreplay

CI = os.environ.get("CI", "").lower() in ("1", "true")


def pytest_configure(config: pytest.Config) -> None:
    """Markers that say what a test needs of the machine."""
    config.addinivalue_line("markers", "root: needs root: it makes network namespaces")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A server on a DPDK port takes half a second to start: of a test over many values it runs the first only."""
    kept, dropped, seen = [], [], set()
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if "af_packet" in (params.get("transport"), params.get("network")):
            test = (item.path, item.originalname)  # type: ignore[attr-defined]
            if test in seen:
                dropped.append(item)
                continue
            seen.add(test)
        kept.append(item)
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture is made."""
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root, to make network namespaces")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """In CI everything that a test may need is there, so a skip is a failure."""
    report = yield
    if CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Seeded by the test's name, or by NETREPLAY_SEED; pytest shows the seed when the test fails."""
    seed = int(os.environ.get("NETREPLAY_SEED", zlib.crc32(request.node.nodeid.encode())))
    print(f"NETREPLAY_SEED={seed}")
    return np.random.default_rng(seed)


Open = Callable[..., netreplay.Replay]
_AF_PACKET = pytest.param("af_packet", marks=pytest.mark.root)


@pytest.fixture(params=["local", "vhost", "udp", _AF_PACKET])
def transport(request: pytest.FixtureRequest) -> str:
    """How the memory is reached."""
    return str(request.param)


@pytest.fixture
def resources() -> Iterator[ExitStack]:
    """Closed in reverse when the test is over, errors of a close included."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=["vhost", "udp", _AF_PACKET])
def network(request: pytest.FixtureRequest) -> str:
    """How a server is reached."""
    return str(request.param)


@pytest.fixture(scope="session")
def wire() -> Iterator[Network]:
    """Two hosts, each a network namespace, and the wire between them."""
    with two_hosts() as built:
        yield built


Serve = Callable[..., ServerProcess]


@pytest.fixture
def serve(request: pytest.FixtureRequest, tmp_path: Path, resources: ExitStack) -> Serve:
    """serve(toml, network) -> a server in a process of its own, ended with the test."""

    def start(toml: str, network: str, **options: Any) -> ServerProcess:
        if network == "vhost" and "listen" not in options:
            sockets = resources.enter_context(TemporaryDirectory(prefix="netreplay-"))  # tmp_path is too long for one
            options["listen"] = f"vhost://{sockets}/test.sock"
        elif network == "af_packet":
            wire = request.getfixturevalue("wire")
            options["namespace"] = wire.server.namespace
            options["port"] = wire.port("net_af_packet")
            if not wire.entered:
                resources.enter_context(wire.on_client())
        server = ServerProcess(toml, tmp_path / f"server{time.monotonic_ns()}", **options)
        return resources.enter_context(server)

    return start


@pytest.fixture
def start_server(network: str, serve: Serve) -> Serve:
    """start_server(toml) -> a server over this network, ended with the test."""
    return partial(serve, network=network)


@pytest.fixture
def open_replay(transport: str, resources: ExitStack, serve: Serve) -> Open:
    """open_replay(toml) -> a Replay over this transport, closed with the test."""

    def open_(toml: str, **options: Any) -> netreplay.Replay:
        if transport == "local":
            replay = netreplay.connect("local:", spec=netreplay.Spec.from_toml(toml), **options)
        else:
            replay = netreplay.connect(serve(toml, transport).url, auth="off", **options)
        return resources.enter_context(replay)

    return open_
