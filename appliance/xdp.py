"""The XDP program of a net_af_xdp port: which frames the port gets. Every other frame stays with the host's kernel.

The port gets UDP datagrams to its addresses and UDP port. Where the kernel has one of these addresses itself, it also
answers ARP, neighbour solicitations and ping for it; else nobody but the port can, and gets them too.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from netreplay.appliance.bpf import CONTEXT, Code, as_loaded, object_file

NAME = "netreplay"
"""of the program, as the kernel knows it"""
DROP, PASS = 1, 2
_QUEUES = 1024  # entries of the map; the kernel has the frames of queues beyond
_REDIRECT_MAP = 51  # number of bpf_redirect_map()
_DATA, _END, _QUEUE = 0, 4, 16  # places in struct xdp_md
_FRAME, _LIMIT = 2, 3  # registers: where the frame begins, where it ends


@dataclass(frozen=True)
class Wanted:
    """What a port shall get."""

    udp_port: int
    addresses: tuple[str, ...]
    """IPv4 and IPv6: UDP to them"""
    answers: tuple[str, ...]
    """those of them for which the port, not the kernel, answers ARP, neighbour solicitations and ping"""

    def of(self, version: int, addresses: tuple[str, ...]) -> list[bytes]:
        """Those of a family, as they stand in a packet."""
        found = [ipaddress.ip_address(text) for text in addresses]
        return [address.packed for address in found if address.version == version]


def program(wanted: Wanted, otherwise: int = PASS) -> bytes:
    """The object file. `otherwise`: what becomes of a frame for the port while no socket is there to take it."""
    code = Code()
    code.load(_FRAME, 4, CONTEXT, _DATA)
    code.load(_LIMIT, 4, CONTEXT, _END)
    code.jump_unless_inside(_FRAME, 14, _LIMIT, "pass")
    code.load(5, 2, _FRAME, 12)
    code.jump_if(5, "=", as_loaded(b"\x08\x00"), "ip4")
    code.jump_if(5, "=", as_loaded(b"\x86\xdd"), "ip6")
    code.jump_if(5, "!=", as_loaded(b"\x08\x06"), "pass")  # one with a VLAN tag too is the kernel's
    _arp(code, wanted.of(4, wanted.answers))
    _ip4(code, wanted.of(4, wanted.addresses), wanted.of(4, wanted.answers))
    _ip6(code, wanted.of(6, wanted.addresses), wanted.of(6, wanted.answers))
    code.label("udp")  # its header is at register 2
    code.jump_unless_inside(2, 8, _LIMIT, "pass")
    code.load(5, 2, 2, 2)
    code.jump_if(5, "!=", as_loaded(wanted.udp_port.to_bytes(2, "big")), "pass")
    code.label("take")
    code.load_map(1)
    code.load(2, 4, CONTEXT, _QUEUE)
    code.do(3, "=", otherwise)
    code.call(_REDIRECT_MAP)
    code.end()
    code.label("pass")
    code.do(0, "=", PASS)
    code.end()
    return object_file(NAME, code, _QUEUES)


def _if_one_of(code: Code, offset: int, addresses: list[bytes], label: str) -> None:
    """Jumps when the address at this place of the frame is one of these; the frame is long enough. Uses register 5."""
    for address in addresses:
        other = f"{label} but {address.hex()} at {offset}"
        for at in range(0, len(address), 4):
            code.load(5, 4, _FRAME, offset + at)
            code.jump_if(5, "!=", as_loaded(address[at : at + 4]), other)
        code.jump(label)
        code.label(other)


def _arp(code: Code, answers: list[bytes]) -> None:
    """Requests for the address of one of these."""
    code.jump_unless_inside(_FRAME, 42, _LIMIT, "pass")
    code.load(5, 2, _FRAME, 20)
    code.jump_if(5, "!=", as_loaded(b"\x00\x01"), "pass")
    _if_one_of(code, 38, answers, "take")
    code.jump("pass")


def _ip4(code: Code, addresses: list[bytes], answers: list[bytes]) -> None:
    """Fragments are the kernel's, who makes packets of them and refuses those."""
    code.label("ip4")
    code.jump_unless_inside(_FRAME, 34, _LIMIT, "pass")
    code.load(0, 1, _FRAME, 14)
    code.do_register(5, "=", 0)
    code.do(5, ">>", 4)
    code.jump_if(5, "!=", 4, "pass")
    code.do(0, "&", 15)
    code.do(0, "<<", 2)
    code.jump_if(0, "<", 20, "pass")
    code.load(5, 2, _FRAME, 20)
    code.do(5, "&", as_loaded(b"\x3f\xff"))
    code.jump_if(5, "!=", 0, "pass")
    code.load(1, 1, _FRAME, 23)
    code.jump_if(1, "=", 1, "icmp4")
    code.jump_if(1, "!=", 17, "pass")
    _if_one_of(code, 30, addresses, "udp4")
    code.jump("pass")
    code.label("udp4")
    code.do(2, "+", 14)
    code.do_register(2, "+", 0)
    code.jump("udp")
    code.label("icmp4")
    _if_one_of(code, 30, answers, "echo4")
    code.jump("pass")
    code.label("echo4")
    code.do(2, "+", 14)
    code.do_register(2, "+", 0)
    code.jump_unless_inside(2, 8, _LIMIT, "pass")
    code.load(5, 2, 2, 0)
    code.jump_if(5, "=", as_loaded(b"\x08\x00"), "take")
    code.jump("pass")


def _ip6(code: Code, addresses: list[bytes], answers: list[bytes]) -> None:
    """Packets with extension headers are the kernel's."""
    code.label("ip6")
    code.jump_unless_inside(_FRAME, 62, _LIMIT, "pass")
    code.load(1, 1, _FRAME, 20)
    code.jump_if(1, "=", 58, "icmp6")
    code.jump_if(1, "!=", 17, "pass")
    _if_one_of(code, 38, addresses, "udp6")
    code.jump("pass")
    code.label("udp6")
    code.do(2, "+", 54)
    code.jump("udp")
    code.label("icmp6")
    code.load(1, 2, _FRAME, 54)
    code.jump_if(1, "=", as_loaded(b"\x80\x00"), "echo6")
    code.jump_if(1, "!=", as_loaded(b"\x87\x00"), "pass")
    code.jump_unless_inside(_FRAME, 78, _LIMIT, "pass")
    _if_one_of(code, 62, answers, "take")
    code.jump("pass")
    code.label("echo6")
    _if_one_of(code, 38, answers, "take")
    code.jump("pass")
