"""The XDP program of a net_af_xdp port, run by the kernel on single frames: which ones the port gets."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import (
    ICMPv6EchoReply,
    ICMPv6EchoRequest,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
)
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

from netreplay.appliance.xdp import DROP, PASS, Wanted, program

pytestmark = pytest.mark.root

PORT = 7447
IP4, IP6, LOCAL = "192.0.2.7", "2001:db8::7", "fe80::ff:fe00:7"
OTHER4, OTHER6 = "192.0.2.8", "2001:db8::8"
MAC = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:07")
UDP_TO_PORT = UDP(sport=9, dport=PORT) / Raw(b"x" * 18)
FROM4, FROM6 = partial(IP, src="192.0.2.1"), partial(IPv6, src="2001:db8::1")

Verdict = Callable[[bytes], int]


class _Run(ctypes.Structure):
    """struct bpf_test_run_opts of libbpf."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_char_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    )


@pytest.fixture
def load() -> Iterator[Callable[[Wanted], Verdict]]:
    """load(wanted) -> what the program says of a frame. No socket is there: what is for the port comes out as DROP."""
    try:
        libbpf = ctypes.CDLL("libbpf.so.1")
    except OSError:
        pytest.skip("no libbpf, which comes with DPDK's net_af_xdp")
    for name in ("bpf_object__open_file", "bpf_object__next_program"):
        getattr(libbpf, name).restype = ctypes.c_void_p
    loaded: list[ctypes.c_void_p] = []

    def load_(wanted: Wanted) -> Verdict:
        file = os.memfd_create("program")
        try:
            os.write(file, program(wanted, otherwise=DROP))
            loaded.append(ctypes.c_void_p(libbpf.bpf_object__open_file(f"/proc/self/fd/{file}".encode(), None)))
            assert libbpf.bpf_object__load(loaded[-1]) == 0
        finally:
            os.close(file)
        fd = libbpf.bpf_program__fd(ctypes.c_void_p(libbpf.bpf_object__next_program(loaded[-1], None)))

        def verdict(frame: bytes) -> int:
            run = _Run(sz=ctypes.sizeof(_Run), data_in=frame, data_size_in=len(frame), repeat=1)
            assert libbpf.bpf_prog_test_run_opts(fd, ctypes.byref(run)) == 0
            return run.retval

        return verdict

    yield load_
    for each in loaded:
        libbpf.bpf_object__close(each)


def wanted(answers: tuple[str, ...]) -> Wanted:
    """All addresses, and the port answers for these."""
    return Wanted(PORT, (IP4, IP6, LOCAL), answers)


OWN = (IP4, IP6, LOCAL)

DATAGRAMS = [
    FROM4(dst=IP4) / UDP_TO_PORT,
    FROM4(dst=IP4, tos=0xFF, flags="DF") / UDP_TO_PORT,
    FROM4(dst=IP4, options=[IPOption_NOP()] * 4) / UDP_TO_PORT,
    FROM4(dst=IP4, options=[IPOption_NOP()] * 40) / UDP_TO_PORT,
    FROM6(dst=IP6) / UDP_TO_PORT,
    FROM6(dst=LOCAL, tc=255, fl=0xFFFFF) / UDP_TO_PORT,
]
QUESTIONS = [
    ARP(op=1, psrc="192.0.2.1", pdst=IP4),
    FROM4(dst=IP4) / ICMP(type=8) / Raw(b"ping"),
    FROM6(dst="ff02::1:ff00:7") / ICMPv6ND_NS(tgt=IP6),
    FROM6(dst=IP6) / ICMPv6ND_NS(tgt=IP6),
    IPv6(src="::", dst="ff02::1:ff00:7") / ICMPv6ND_NS(tgt=LOCAL),
    FROM6(dst=LOCAL) / ICMPv6EchoRequest(data=b"ping"),
]
KERNELS = [
    FROM4(dst=OTHER4) / UDP_TO_PORT,
    FROM4(dst=IP4) / UDP(dport=PORT + 1),
    FROM4(dst=IP4) / UDP(sport=PORT, dport=9),
    FROM4(dst=IP4, options=[IPOption_NOP()] * 4) / UDP(sport=PORT, dport=22),
    FROM4(dst=IP4) / TCP(dport=PORT),
    FROM4(dst=IP4, proto=17, ihl=4) / UDP_TO_PORT,
    FROM4(dst=IP4, proto=17, version=5) / UDP_TO_PORT,
    FROM4(dst=IP4, flags="MF") / UDP_TO_PORT,
    FROM4(dst=IP4, frag=1, proto=17) / UDP_TO_PORT,
    FROM4(dst=IP4) / ICMP(type=0),
    FROM4(dst=IP4) / ICMP(type=3, code=4),
    FROM4(dst=OTHER4) / ICMP(type=8),
    FROM6(dst=OTHER6) / UDP_TO_PORT,
    FROM6(dst=IP6) / UDP(dport=22),
    FROM6(dst=IP6) / TCP(dport=PORT),
    FROM6(dst=IP6) / IPv6ExtHdrDestOpt() / UDP_TO_PORT,
    FROM6(dst=IP6) / IPv6ExtHdrFragment() / UDP_TO_PORT,
    FROM6(dst=OTHER6) / ICMPv6EchoRequest(),
    FROM6(dst=IP6) / ICMPv6EchoReply(),
    FROM6(dst=IP6) / ICMPv6ND_NA(tgt=OTHER6),
    FROM6(dst="ff02::1:ff00:8") / ICMPv6ND_NS(tgt=OTHER6),
    ARP(op=1, pdst=OTHER4),
    ARP(op=2, pdst=IP4),
    Dot1Q(vlan=5) / FROM4(dst=IP4) / UDP_TO_PORT,
    Raw(bytes(100)),
]


def frame(packet: Packet) -> bytes:
    return bytes(MAC / packet)


@pytest.mark.parametrize("answers", [OWN, (), (IP4,), (LOCAL,)], ids=["own", "the kernel's", "IPv4 own", "local own"])
def test_the_port_gets_datagrams_to_it_and_questions_that_nobody_else_answers(load, answers):
    verdict = load(wanted(answers))
    for packet in DATAGRAMS:
        assert verdict(frame(packet)) == DROP, packet
    for packet, address in zip(QUESTIONS, (IP4, IP4, IP6, IP6, LOCAL, LOCAL), strict=True):
        assert verdict(frame(packet)) == (DROP if address in answers else PASS), packet
    for packet in KERNELS:
        assert verdict(frame(packet)) == PASS, packet


@pytest.mark.parametrize("addresses", [(IP4, LOCAL), (IP6, LOCAL)], ids=["IPv4 alone", "IPv6 alone"])
def test_a_family_that_the_port_does_not_have_is_the_kernels(load, addresses):
    verdict = load(Wanted(PORT, addresses, addresses))
    for packet in DATAGRAMS:
        assert verdict(frame(packet)) == (DROP if packet.dst in addresses else PASS), packet


def test_a_frame_that_ends_before_what_decides_is_the_kernels(load):
    verdict = load(wanted(OWN))
    for packet, least in zip([*DATAGRAMS, *QUESTIONS], [42, 42, 46, 82, 62, 62, 42, 42, 78, 78, 78, 62], strict=True):
        whole = frame(packet)
        for length in range(14, len(whole) + 1):
            assert verdict(whole[:length]) == (DROP if length >= least else PASS), (packet, length)


def test_every_port_number_and_address_is_compared_whole(load):
    """One bit of what decides is wrong: the frame is the kernel's."""
    verdict = load(wanted(()))
    for packet, places in ((DATAGRAMS[0], [*range(30, 34), 36, 37]), (DATAGRAMS[4], [*range(38, 54), 56, 57])):
        whole = frame(packet)
        for place in places:
            for bit in range(8):
                other = bytearray(whole)
                other[place] ^= 1 << bit
                assert verdict(bytes(other)) == PASS, (packet, place, bit)
