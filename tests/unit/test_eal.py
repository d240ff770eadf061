"""What DPDK's EAL is told, and what its errors become. Nothing here starts it."""

from __future__ import annotations

import os

import pytest

from netreplay.appliance.config import EalConfig, PortConfig, ServerConfig, load, parse_eal, parse_ports
from netreplay.appliance.eal import arguments, translate
from netreplay.errors import SpecError

VDEV = PortConfig("a", "net_af_packet0,iface=eth1", ip4="10.0.0.7")
CARD = PortConfig("b", "0000:03:00.0", ip4="10.0.0.7")


def after(words: list[str], flag: str) -> list[str]:
    return [words[i + 1] for i, word in enumerate(words[:-1]) if word == flag]


def test_a_virtual_device_needs_neither_pci_nor_hugepages():
    words = arguments(ServerConfig(ports=(VDEV,), core=0))
    assert after(words, "--vdev") == [VDEV.device]
    assert {"--no-pci", "--no-huge"} <= set(words)
    assert (after(words, "-l"), after(words, "-m")) == (["0"], ["256"])


def test_a_filter_is_an_argument_of_its_device():
    ports = parse_ports({name: {"device": f"net_af_xdp{name},iface=eth{name}", "ip4": "10.0.0.7"} for name in "01"})
    words = arguments(ServerConfig(ports=ports), {"1": "/proc/self/fd/7"})
    assert after(words, "--vdev") == ["net_af_xdp0,iface=eth0", "net_af_xdp1,iface=eth1,xdp_prog=/proc/self/fd/7"]


@pytest.mark.parametrize(
    ("entries", "filtered"),
    [
        ({"device": "net_af_xdp0,iface=eth1"}, True),
        ({"device": "net_af_xdp0,iface=eth1", "filter": False}, False),
        ({"device": "net_af_xdp0,iface=eth1,xdp_prog=/a.o"}, False),
        ({"device": "net_af_packet0,iface=eth1"}, False),
    ],
)
def test_only_af_xdp_is_filtered_unless_it_has_a_program_or_shall_not_be(entries, filtered):
    (port,) = parse_ports({"p": entries | {"ip4": "10.0.0.7"}})
    assert port.filtered is filtered


def test_a_card_is_the_only_one_that_is_probed():
    words = arguments(ServerConfig(ports=(CARD,), eal=EalConfig(hugepages=True, memory=1 << 30)))
    assert after(words, "-a") == [CARD.device]
    assert "--no-pci" not in words
    assert "--no-huge" not in words
    assert after(words, "-m") == ["1024"]


def test_every_process_has_a_prefix_of_its_own_and_extras_come_last():
    words = arguments(ServerConfig(ports=(VDEV,), eal=EalConfig(arguments=("--log-level", "pmd:8"))))
    assert after(words, "--file-prefix") == [f"netreplay-{os.getpid()}"]
    assert words[-2:] == ["--log-level", "pmd:8"]


def test_without_a_core_the_last_one_is_taken_so_that_the_first_stays_free():
    assert after(arguments(ServerConfig(ports=(VDEV,))), "-l") == [str(max(os.sched_getaffinity(0)))]


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("EAL: No free 2048 kB hugepages reported on node 0", "too few hugepages are free for eal.memory (256 MiB)"),
        ("EAL: Cannot get hugepage information.", "sysctl vm.nr_hugepages=128"),
        ("EAL: invalid core list, please check", "server.core: 77 is no core of this process"),
        ('EAL: failed to parse device "net_xyz0"', "port.device: net_xyz0 is no device that DPDK knows"),
        (
            "vdev_probe(): failed\nEAL: Driver cannot attach the device (net_af_packet0)",
            "net_af_packet0 does not start",
        ),
        ("netreplay: unrecognized option '--bogus'", "eal.arguments: --bogus is refused by EAL"),
        ("EAL: Permission denied", "let root run it"),
        ("EAL: something failed badly", "EAL: something failed badly"),
        ("", "it gave no reason"),
    ],
)
def test_what_eal_says_becomes_one_line_with_the_way_out(said, line):
    config = ServerConfig(ports=(VDEV,), core=77, eal=EalConfig(arguments=("--bogus",)))
    found = translate(said, config)
    assert line in found
    assert "\n" not in found


def test_ports_are_read_by_name():
    (port,) = parse_ports({"east": {"device": "0000:03:00.0", "ip4": "10.0.0.7", "ip6": "fd00::7", "mtu": 9000}})
    assert (port.name, port.mtu, port.physical) == ("east", 9000, True)
    assert [str(a) for a in port.addresses] == ["udp://10.0.0.7:7447", "udp://[fd00::7]:7447"]


@pytest.mark.parametrize(
    ("entries", "path", "complaint"),
    [
        ({"ip4": "10.0.0.7"}, "port.p.device", "neither a PCI address"),
        ({"device": "eth0", "ip4": "10.0.0.7"}, "port.p.device", "'eth0' is neither a PCI address"),
        ({"device": "net_null0"}, "port.p.ip4", "is missing, and so is ip6"),
        ({"device": "net_null0", "ip4": "10.0.0"}, "port.p.ip4", "'10.0.0' is not an IPv4 address"),
        ({"device": "net_null0", "ip6": "10.0.0.7"}, "port.p.ip6", "is not an IPv6 address"),
        ({"device": "net_null0", "ip4": "224.0.0.1"}, "port.p.ip4", "is not an IPv4 address of one host"),
        ({"device": "net_null0", "ip4": "10.0.0.7", "mtu": 68}, "port.p.mtu", "68 is not between 1280 and 9000"),
        ({"device": "net_null0", "ip4": "10.0.0.7", "port": 0}, "port.p.port", "0 is not between 1 and 65535"),
        ({"device": "net_null0", "ip4": "10.0.0.7", "speed": 40}, "port.p.speed", "is not known"),
        ({"device": "net_af_xdp0", "ip4": "10.0.0.7", "filter": 1}, "port.p.filter", "1 is not true or false"),
        ({"device": "net_null0", "ip4": "10.0.0.7", "filter": True}, "port.p.filter", "is of net_af_xdp only"),
        (
            {"device": "net_af_xdp0,xdp_prog=a.o", "ip4": "10.0.0.7", "filter": True},
            "port.p.filter",
            "would replace the program",
        ),
    ],
)
def test_what_is_wrong_in_a_port_is_named(entries, path, complaint):
    with pytest.raises(SpecError, match=complaint) as caught:
        parse_ports({"p": entries})
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("entries", "path"),
    [({"hugepages": 1}, "eal.hugepages"), ({"memory": "1 B"}, "eal.memory"), ({"arguments": "-v"}, "eal.arguments")],
)
def test_what_is_wrong_for_eal_is_named(entries, path):
    with pytest.raises(SpecError) as caught:
        parse_eal(entries)
    assert caught.value.path == path


def test_with_a_port_nothing_else_is_listened_on_unless_it_is_said(tmp_path):
    text = '[store.s]\nobservation.o = {dtype = "float32", shape = [4]}\naction.a = {dtype = "int64"}\n'
    text += '[table.t]\nstore = "s"\ncapacity = 10\n[port.p]\ndevice = "net_null0"\nip4 = "10.0.0.7"\n'
    path = tmp_path / "a.toml"
    path.write_text(text)
    assert load(path)[1].listen == ()
    path.write_text(text + '[server]\nlisten = "vhost:///tmp/a.sock"\n')
    assert [str(address) for address in load(path)[1].listen] == ["vhost:///tmp/a.sock"]
