"""Frames from a file and to a file (net_pcap): what a DPDK port answers, byte for byte, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, ICMPv6ND_NS, ICMPv6NDOptSrcLLAddr, IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Raw
from scapy.utils import rdpcap, wrpcap
from serving import ServerProcess
from specs import simple

PEER, EVERYBODY = "02:00:00:00:00:07", "ff:ff:ff:ff:ff:ff"
MAC = "02:70:63:61:70:00"
"""of the first net_pcap port"""
OURS, THEIRS = ("10.0.0.7", "fd00::7"), ("10.0.0.9", "fd00::9")
HEADER = 48


def ask(*layers, to: str = MAC):
    frame = Ether(src=PEER, dst=to)
    for layer in layers:
        frame = frame / layer
    return Ether(bytes(frame))  # lengths and checksums as they go out


def unknown_session(port: int = 7447):
    """A datagram of the protocol for a session that does not exist: answered in no more bytes than it has."""
    header = bytearray(HEADER)
    header[0:2] = (0x524E).to_bytes(2, "little")
    return UDP(sport=5000, dport=port) / Raw(bytes(header) + bytes(48))


ANSWERED = [
    ask(ARP(op="who-has", hwsrc=PEER, psrc=THEIRS[0], pdst=OURS[0]), to=EVERYBODY),
    ask(IP(src=THEIRS[0], dst=OURS[0]), ICMP(id=3, seq=4), Raw(b"ping" * 10)),
    ask(
        IPv6(src=THEIRS[1], dst="ff02::1:ff00:7"),
        ICMPv6ND_NS(tgt=OURS[1]),
        ICMPv6NDOptSrcLLAddr(lladdr=PEER),
        to="33:33:ff:00:00:07",
    ),
    ask(IPv6(src=THEIRS[1], dst=OURS[1]), ICMPv6EchoRequest(id=5, seq=6, data=b"ping" * 5)),
]
BROKEN_LENGTH = bytearray(bytes(ask(IP(src=THEIRS[0], dst=OURS[0]), unknown_session())))
BROKEN_LENGTH[38:40] = (5000).to_bytes(2, "big")
BROKEN_SUM = bytearray(bytes(ask(IP(src=THEIRS[0], dst=OURS[0]), unknown_session())))
BROKEN_SUM[-1] ^= 1
IGNORED = [
    ask(IP(src=THEIRS[0], dst=OURS[0]), ICMP(), to=EVERYBODY),
    ask(ARP(op="who-has", hwsrc=PEER, psrc=THEIRS[0], pdst="10.0.0.8"), to=EVERYBODY),
    ask(IP(src=THEIRS[0], dst="10.0.0.8"), ICMP()),
    ask(IP(src=THEIRS[0], dst=OURS[0]), unknown_session(port=7448)),
    ask(IP(src=THEIRS[0], dst=OURS[0], flags="MF"), unknown_session()),
    ask(Dot1Q(vlan=5), IP(src=THEIRS[0], dst=OURS[0]), ICMP()),
    ask(IP(src=THEIRS[0], dst=OURS[0]), UDP(sport=5000, dport=7447), Raw(b"not of the protocol")),
    Ether(bytes(BROKEN_LENGTH)),
    Ether(bytes(BROKEN_SUM)),
    Ether(bytes(ANSWERED[1])[:30]),
]


def answers(folder: Path, frames: list[Ether]) -> list[Ether]:
    """What a server's port sends when it receives these frames."""
    came, went = folder / "in.pcap", folder / "out.pcap"
    wrpcap(str(came), frames)
    part = f'[port.p]\ndevice = "net_pcap0,rx_pcap={came},tx_pcap={went}"\nip4 = "{OURS[0]}"\nip6 = "{OURS[1]}"\n'
    with ServerProcess(simple(), folder / "server", port=part):
        pass  # it is ready when it polls; it has received all when it ends
    return list(rdpcap(str(went))) if went.exists() and went.stat().st_size > 24 else []


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    return answers(tmp_path_factory.mktemp("pcap"), [*IGNORED, *ANSWERED])


def test_only_what_is_for_the_port_is_answered_in_order(sent):
    assert len(sent) == len(ANSWERED), [frame.summary() for frame in sent]
    for frame in sent:
        assert frame.dst == PEER


def test_arp_and_neighbours_are_answered(sent):
    arp, _, neighbour, _ = sent
    mac = MAC
    expected = Ether(src=mac, dst=PEER) / ARP(op="is-at", hwsrc=mac, psrc=OURS[0], hwdst=PEER, pdst=THEIRS[0])
    assert bytes(arp)[: len(expected)] == bytes(expected)
    assert (neighbour[IPv6].src, neighbour[IPv6].dst, neighbour[IPv6].hlim) == (OURS[1], THEIRS[1], 255)
    assert neighbour["ICMPv6 Neighbor Discovery - Neighbor Advertisement"].tgt == OURS[1]
    assert neighbour["ICMPv6 Neighbor Discovery Option - Destination Link-Layer Address"].lladdr == mac


@pytest.mark.parametrize("which", [1, 2, 3])
def test_checksums_are_what_another_implementation_reckons(sent, which):
    frame = sent[which].copy()
    original = bytes(frame)
    for layer in (IP, ICMP):
        if layer in frame:
            del frame[layer].chksum
    inner = frame.lastlayer() if which == 1 else frame[IPv6].payload
    if which != 1:
        del inner.cksum
    assert bytes(Ether(bytes(frame))) == original


def test_pings_come_back_whole(sent):
    _, four, _, six = sent
    assert (four[IP].src, four[IP].dst, four[ICMP].type, four[ICMP].id, four[ICMP].seq) == (
        *(OURS[0], THEIRS[0]),
        0,
        3,
        4,
    )
    assert bytes(four[ICMP].payload)[:40] == b"ping" * 10
    reply = six["ICMPv6 Echo Reply"]
    assert (six[IPv6].src, six[IPv6].dst, reply.id, reply.seq, reply.data) == (OURS[1], THEIRS[1], 5, 6, b"ping" * 5)
