"""What the kernel says of a network interface (rtnetlink): its MAC, its XDP program, its addresses. Takes programs off.

All of it in the network namespace of the calling thread.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import mmap
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

_LINK_GET, _LINK_SET, _ADDRESS_GET = 18, 19, 22  # message types
_ERROR, _DONE = 2, 3
_REQUEST, _ACKNOWLEDGE, _DUMP = 1, 4, 0x300
_MAC, _NAME, _XDP = 1, 3, 43  # attributes of a link
_XDP_FD, _XDP_ATTACHED, _XDP_FLAGS, _XDP_ID, _XDP_EXPECTED = 1, 2, 3, 4, 8
_QUEUES = 32
_MODES = {1: 4, 2: 2, 3: 8}  # flags that name how a program is attached
_REPLACE = 16  # flag: only if the expected one is there
_NESTED = 0x8000
_SYSTEM_CALLS = {"x86_64": 321, "aarch64": 280}  # bpf(2)
_PROGRAM_FD_BY_ID, _INFO_BY_FD = 13, 15
_AF_XDP, _SOL_XDP = 44, 283


class Interface(NamedTuple):
    """What there is."""

    name: str
    number: int
    """the kernel's index of it"""
    mac: bytes
    queues: int
    """receive queues at most"""
    program: int
    """id of its XDP program; 0: none"""
    mode: int
    """how it is attached: 0 not, 1 to the driver, 2 before the kernel's stack, 3 in the card, 4 several"""

    @property
    def link_local(self) -> str:
        """The IPv6 address that its MAC makes (modified EUI-64)."""
        mac = self.mac
        host = bytes([mac[0] ^ 2, mac[1], mac[2], 0xFF, 0xFE, mac[3], mac[4], mac[5]])
        return str(ipaddress.IPv6Address(bytes([0xFE, 0x80]) + bytes(6) + host))


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _attributes(data: bytes) -> dict[int, bytes]:
    found, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            break
        found[kind & ~_NESTED] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def _ask(kind: int, flags: int, body: bytes) -> Iterator[bytes]:
    """The bodies of the answers; OSError as the kernel says."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as link:
        link.bind((0, 0))
        link.send(struct.pack("=IHHII", 16 + len(body), kind, _REQUEST | flags, 1, 0) + body)
        while True:
            data, at = link.recv(1 << 18), 0
            while at + 16 <= len(data):
                length, answer, more = struct.unpack_from("=IHH", data, at)
                if answer == _DONE:
                    return
                if answer == _ERROR:
                    error = -struct.unpack_from("=i", data, at + 16)[0]
                    if error != 0:
                        raise OSError(error, os.strerror(error))
                    return
                yield data[at + 16 : at + length]
                if not more & 2:
                    return
                at += (length + 3) & ~3


def look(name: str) -> Interface:
    """The interface of this name; OSError when there is none."""
    body = struct.pack("=BxHiII", 0, 0, 0, 0, 0) + _attribute(_NAME, name.encode() + b"\0")
    (answer,) = _ask(_LINK_GET, 0, body)
    found = _attributes(answer[16:])
    xdp = _attributes(found.get(_XDP, b""))
    index = struct.unpack_from("=i", answer, 4)[0]
    queues = int.from_bytes(found.get(_QUEUES, b""), sys.byteorder)
    program = int.from_bytes(xdp.get(_XDP_ID, b""), sys.byteorder)
    return Interface(name, index, found.get(_MAC, bytes(6)), queues, program, xdp.get(_XDP_ATTACHED, b"\0")[0])


def kernels(interface: Interface, address: str) -> bool:
    """Whether the kernel answers for an address at this interface: an IPv4 address of any, an IPv6 address of this."""
    wanted = ipaddress.ip_address(address)
    family = socket.AF_INET if wanted.version == 4 else socket.AF_INET6
    for answer in _ask(_ADDRESS_GET, _DUMP, struct.pack("=BBBBi", family, 0, 0, 0, 0)):
        found = _attributes(answer[8:])
        own = found.get(2, found.get(1))  # IFA_LOCAL, else IFA_ADDRESS
        index = struct.unpack_from("=i", answer, 4)[0]
        if own == wanted.packed and (wanted.version == 4 or index == interface.number):
            return True
    return False


@contextmanager
def _program(number: int) -> Iterator[int]:
    """A descriptor of the BPF program with this id."""
    fd = _bpf(_PROGRAM_FD_BY_ID, struct.pack("=III", number, 0, 0))
    try:
        yield fd
    finally:
        os.close(fd)


def _bpf(command: int, attributes: bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes, 64)
    result = int(libc.syscall(_SYSTEM_CALLS.get(platform.machine(), -1), command, buffer, 64))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def program_name(interface: Interface) -> str:
    """The name of its XDP program, "" when it cannot be told."""
    info = ctypes.create_string_buffer(256)
    try:
        with _program(interface.program) as fd:
            _bpf(_INFO_BY_FD, struct.pack("=IIQ", fd, len(info), ctypes.addressof(info)))
    except OSError:
        return ""
    return info.raw[64:80].split(b"\0")[0].decode(errors="replace")  # struct bpf_prog_info.name


def take_off(interface: Interface) -> None:
    """Takes the XDP program off that was seen there; OSError when that is another by now."""
    with _program(interface.program) as fd:
        flags = _MODES.get(interface.mode, 0) | _REPLACE
        values = ((_XDP_FD, -1), (_XDP_FLAGS, flags), (_XDP_EXPECTED, fd))
        nested = b"".join(_attribute(kind, struct.pack("=i", value)) for kind, value in values)
        body = struct.pack("=BxHiII", 0, 0, interface.number, 0, 0) + _attribute(_XDP | _NESTED, nested)
        list(_ask(_LINK_SET, _ACKNOWLEDGE, body))


def is_received_from(interface: Interface) -> bool:
    """Whether a process has an AF_XDP socket at any of its queues: tries to bind one. OSError without permission."""
    libc = ctypes.CDLL(None, use_errno=True)
    with closing(mmap.mmap(-1, 4 * mmap.PAGESIZE)) as area:
        place = ctypes.addressof(ctypes.c_char.from_buffer(area))
        for queue in range(interface.queues):
            with socket.socket(_AF_XDP, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as probe:
                memory = struct.pack("=QQIII4x", place, 4 * mmap.PAGESIZE, mmap.PAGESIZE, 0, 0)
                probe.setsockopt(_SOL_XDP, 4, memory)  # XDP_UMEM_REG
                for ring in (5, 6, 2):  # fill, completion, receive
                    probe.setsockopt(_SOL_XDP, ring, 8)
                address = struct.pack("=HHIII", _AF_XDP, 2, interface.number, queue, 0)  # XDP_COPY
                if libc.bind(probe.fileno(), address, len(address)) != 0 and ctypes.get_errno() == errno.EBUSY:
                    return True
    return False
