"""Two hosts in network namespaces (netns.sh), and what tests run on them."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from serving import PATIENCE, enter_namespace, wait_until

HERE = Path(__file__).parent
_SETTLE = 30.0
"""seconds until the topology is built: longer than netns.sh itself waits"""


class Program:
    """One of programs.py, running on a host. It tells words with facts, and is told words."""

    def __init__(self, command: Sequence[str]) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def hear(self, word: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """The facts of the next word, which must be this one."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"{self}: said nothing for {seconds} s, and {word!r} was wanted") from None
        if line is None:
            raise AssertionError(f"{self}: ended with {self._process.wait()} before it said {word!r} (see stderr)")
        heard, facts = json.loads(line)
        assert heard == word, f"{self}: said {heard!r} {facts}, and {word!r} was wanted"
        found: dict[str, Any] = facts
        return found

    def say(self, word: str) -> None:
        """Tells it a word."""
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def ask(self, word: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """Tells it a word; the facts of the answer, which has the same word."""
        self.say(word)
        return self.hear(word.partition(" ")[0], seconds)

    def end(self) -> None:
        """Kills it if it still runs."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):  # words that it never read
                stream.close()

    def __repr__(self) -> str:
        return f"<program {' '.join(map(str, self._process.args))}>"  # type: ignore[arg-type]


class Host(NamedTuple):
    """One of the two: a network namespace whose interface is eth0."""

    namespace: str
    ipv4: str
    ipv6: str

    @property
    def within(self) -> list[str]:
        """What a command begins with to run on this host; it keeps its process id."""
        return ["ip", "netns", "exec", self.namespace]

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Moves this thread, and what it starts, to this host. Sockets stay where they were made."""
        with Path("/proc/thread-self/ns/net").open("rb") as home:
            enter_namespace(f"/run/netns/{self.namespace}")
            try:
                yield
            finally:
                enter_namespace(f"/proc/self/fd/{home.fileno()}")

    def do(self, *command: str) -> str:
        """Runs a command on this host; its output."""
        done = subprocess.run([*self.within, *command], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}: {done.stderr}"
        return done.stdout

    def address(self, family: str) -> str:
        """As it stands in a URL."""
        return self.ipv4 if family == "IPv4" else f"[{self.ipv6}]"

    def link(self, *settings: str) -> None:
        """`ip link set eth0 ...`"""
        self.do("ip", "link", "set", "eth0", *settings)

    def usable(self) -> bool:
        """Whether the link is up and no address is tentative (duplicate address detection is over)."""
        up = "state UP" in self.do("ip", "-o", "link", "show", "eth0")
        return up and not self.do("ip", "-6", "-o", "address", "show", "dev", "eth0", "tentative").strip()

    def fragments(self) -> int:
        """IP packets that were cut, or put together again, of both families."""
        names, values = [
            line.split()[1:] for line in self.do("cat", "/proc/net/snmp").splitlines() if line.startswith("Ip:")
        ]
        counts = dict(zip(names, values, strict=True))
        counts |= dict(line.split() for line in self.do("cat", "/proc/net/snmp6").splitlines())
        return sum(int(counts[name]) for name in ("FragCreates", "ReasmReqds", "Ip6FragCreates", "Ip6ReasmReqds"))


class Server:
    """`netreplay serve -c FILE` on a host; its port is free when it first starts, and stays the same."""

    def __init__(self, host: Host, family: str, toml: str, folder: Path) -> None:
        folder.mkdir()
        self._config, self._ready, self._log = folder / "server.toml", folder / "ready", folder / "log"
        self._config.write_text(toml)
        self._within = host.within
        self.peer = f"{host.address(family)}:0"
        """host and port as errors name them"""

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"udp://{self.peer}"

    def start(self) -> None:
        """Returns when it is ready."""
        self._ready.unlink(missing_ok=True)
        command = [*self._within, sys.executable, "-m", "netreplay.cli", "serve", "-c", str(self._config)]
        command += ["--auth", "off", "--listen", self.peer, "--ready-file", str(self._ready)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(lambda: self._ready.exists() or self._process.poll() is not None, "the server is ready")
        assert self._ready.exists(), self._log.read_text()
        self.peer = self._ready.read_text().strip().removeprefix("udp://")

    def kill(self) -> None:
        """As a crash would."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            assert self._process.wait(PATIENCE) == 0, self._log.read_text()
        finally:
            self.kill()


class Network:
    """The two hosts and the wire between them."""

    def __init__(self, name: str) -> None:
        self.server = Host(f"{name}-server", "192.0.2.1", "2001:db8::1")
        self.client = Host(f"{name}-client", "192.0.2.2", "2001:db8::2")
        self.entered = False
        """whether this process is on the client host"""
        self._ports = 0

    def port(
        self, driver: str, mtu: int = 1500, arguments: str = "", kernels: bool = False, filter_: bool | None = None
    ) -> str:
        """A [port.NAME] part for a DPDK port on the server host's eth0, with addresses of its own or the kernel's."""
        self._ports = self._ports % 200 + 1
        device = ",".join([f"{driver}0", "iface=eth0", *([arguments] if arguments else [])])
        ip4, ip6 = f"192.0.2.{10 + self._ports}", f"2001:db8::{10 + self._ports:x}"
        if kernels:
            ip4, ip6 = self.server.ipv4, self.server.ipv6
        part = f'[port.eth0]\ndevice = "{device}"\nmtu = {mtu}\nip4 = "{ip4}"\nip6 = "{ip6}"\n'
        return part if filter_ is None else f"{part}filter = {str(filter_).lower()}\n"

    @contextmanager
    def on_client(self) -> Iterator[None]:
        """Moves this thread, and what it starts, to the client host."""
        with self.client.inside():
            self.entered = True
            try:
                yield
            finally:
                self.entered = False

    def settle(self) -> None:
        """Waits until both hosts can use all of their addresses."""
        wait_until(lambda: self.server.usable() and self.client.usable(), "both hosts' addresses are usable")

    def restore(self) -> None:
        """As it was built, whatever a test did to it."""
        for host in (self.server, self.client):
            host.link("mtu", "1500", "up")
            if shutil.which("iptables"):
                for command in ("iptables", "ip6tables"):
                    host.do(command, "-w", "-F")
        self.settle()


@contextmanager
def two_hosts() -> Iterator[Network]:
    """Built by netns.sh, which takes them away when its input ends: even when this process is killed."""
    name = f"netreplay-{os.getpid()}"
    command = [str(HERE / "netns.sh"), "run", name, "sh", "-c", "echo ready; cat"]
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        ready = keeper.stdout.readline()  # or the end: netns.sh gives up by itself
        if ready != "ready\n":
            pytest.fail(f"netns.sh ended with {keeper.wait(_SETTLE)} (see stderr)")
        yield Network(name)
    finally:
        keeper.stdin.close()
        keeper.stdout.close()
        assert keeper.wait(_SETTLE) == 0


def program(host: Host, name: str, *arguments: object) -> Program:
    """Starts one of programs.py on a host."""
    return Program([*host.within, sys.executable, str(HERE / "programs.py"), name, *map(str, arguments)])
