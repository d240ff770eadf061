"""BPF programs as bytes: an assembler for what xdp.py writes, and the object file (ELF, BTF) that libbpf loads.

No compiler is needed where a server runs: DPDK's net_af_xdp takes an object file, and this writes one with a single
program and the single map that such a program needs, `xsks_map`.
"""

from __future__ import annotations

import struct
import sys

# Registers: 0 result, 1 to 5 arguments (a call loses them), 6 to 9 kept, 10 the stack.
CONTEXT = 6
"""where `Code` keeps the program's context from its first instruction on"""

_BYTES = {1: 0x10, 2: 0x08, 4: 0x00}  # BPF_B, BPF_H, BPF_W
_JUMPS = {"=": 0x10, ">": 0x20, "!=": 0x50, "<": 0xA0}  # unsigned
_ALU = {"+": 0x00, "&": 0x50, "<<": 0x60, ">>": 0x70, "=": 0xB0}
_JUMP, _EXIT = 0x05, 0x95


def as_loaded(data: bytes) -> int:
    """The number that a load of these bytes gives on this machine, as an immediate: signed."""
    return int.from_bytes(data, sys.byteorder, signed=len(data) == 4)


class Code:
    """Instructions in order. Every jump leads forward to a label that stands later, so every run ends. What no run can
    reach is left out, as the kernel refuses programs with such instructions."""

    def __init__(self) -> None:
        self._instructions: list[tuple[int, int, int, int | str, int]] = []
        self._labels: dict[str, int] = {}
        self._wanted: set[str] = set()
        """labels that a jump leads to"""
        self._reached = True
        """whether a run can come to the next instruction"""
        self.map_references: list[int] = []
        """instructions that load the map's address"""
        self._add(0xBF, CONTEXT, 1)

    def _add(self, code: int, target: int = 0, source: int = 0, offset: int | str = 0, immediate: int = 0) -> None:
        if not self._reached:
            return
        if isinstance(offset, str):
            assert offset not in self._labels, f"a jump leads back to {offset!r}"
            self._wanted.add(offset)
        self._instructions.append((code, target, source, offset, immediate))
        self._reached = code not in (_JUMP, _EXIT)

    def label(self, name: str) -> None:
        """The next instruction is known by this name."""
        self._labels[name] = len(self._instructions)
        self._reached = self._reached or name in self._wanted

    def load(self, target: int, size: int, base: int, offset: int) -> None:
        """target = the `size` bytes at base + offset, as this machine reads them."""
        self._add(0x61 | _BYTES[size], target, base, offset)

    def do(self, target: int, operation: str, value: int) -> None:
        """target = target (operation) value; "=" sets it. 64 bits wide."""
        self._add(0x07 | _ALU[operation], target, immediate=value)

    def do_register(self, target: int, operation: str, source: int) -> None:
        """The same with another register for value."""
        self._add(0x0F | _ALU[operation], target, source)

    def jump_if(self, register: int, comparison: str, value: int, label: str) -> None:
        """Compares the low 32 bits."""
        self._add(0x06 | _JUMPS[comparison], register, offset=label, immediate=value)

    def jump_unless_inside(self, base: int, length: int, end: int, label: str) -> None:
        """Jumps when not all of the `length` bytes at base lie before `end`. Uses register 4."""
        self.do_register(4, "=", base)
        self.do(4, "+", length)
        self._add(0x2D, 4, end, label)

    def jump(self, label: str) -> None:
        """Always."""
        self._add(_JUMP, offset=label)

    def load_map(self, target: int) -> None:
        """target = the map, as calls take it. libbpf fills it in."""
        if self._reached:
            self.map_references.append(len(self._instructions))
        self._add(0x18, target)
        self._add(0)

    def call(self, helper: int) -> None:
        """A function of the kernel's, by its number."""
        self._add(0x85, immediate=helper)

    def end(self) -> None:
        """The result is in register 0."""
        self._add(_EXIT)

    def assemble(self) -> bytes:
        """All of it; 8 bytes an instruction."""
        assembled = bytearray()
        for place, (code, target, source, offset, immediate) in enumerate(self._instructions):
            if isinstance(offset, str):
                offset = self._labels[offset] - place - 1
            low, high = (target, source) if sys.byteorder == "little" else (source, target)
            assembled += struct.pack("=BBhi", code, high << 4 | low, offset, immediate)
        return bytes(assembled)


_XSKMAP = 17
_MAP_BYTES = 32  # of the variable that describes the map: four pointers


class _Strings:
    """A table of strings as ELF and BTF have it: by offset, the empty one first."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        place = len(self.data) if text else 0
        self.data += text.encode() + b"\0" if text else b""
        return place


def _btf(entries: int) -> bytes:
    """The types of a map as libbpf wants it described: a struct of pointers to arrays of so many ints."""
    names = _Strings()
    types = b""

    def kind(name: str, kind: int, count: int, size_or_type: int, *rest: int) -> None:
        nonlocal types
        types += struct.pack(f"=III{len(rest)}I", names.add(name), kind << 24 | count, size_or_type, *rest)

    kind("int", 1, 0, 4, 1 << 24 | 32)  # type 1
    for array, number in ((2, _XSKMAP), (4, 4), (6, entries)):  # and type array + 1, the pointer to it
        kind("", 3, 0, 0, 1, 1, number)
        kind("", 2, 0, array)
    members = (("type", 3), ("key_size", 5), ("value_size", 5), ("max_entries", 7))
    fields = [word for i, (name, type_) in enumerate(members) for word in (names.add(name), type_, 64 * i)]
    kind("", 4, len(members), _MAP_BYTES, *fields)  # type 8
    kind("xsks_map", 14, 0, 8, 1)  # type 9: a global variable
    kind(".maps", 15, 1, _MAP_BYTES, 9, 0, _MAP_BYTES)
    header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names.data))
    return header + types + names.data


def object_file(name: str, code: Code, entries: int) -> bytes:
    """An XDP program of this name with `xsks_map` of so many entries, as libbpf 0.6 and later loads it."""
    instructions = code.assemble()
    names = _Strings()
    program, maps, symbols = 1, 2, 6  # numbers of sections

    def symbol(text: str, kind: int, section: int, size: int) -> bytes:
        return struct.pack("=IBBHQQ", names.add(text), 1 << 4 | kind, 0, section, 0, size)  # global

    table = bytes(24) + symbol(name, 2, program, len(instructions)) + symbol("xsks_map", 1, maps, _MAP_BYTES)
    relocations = b"".join(struct.pack("=QQ", 8 * place, 2 << 32 | 1) for place in code.map_references)
    # name, type, flags, contents, link, info, entry size
    sections: list[tuple[str, int, int, bytes, int, int, int]] = [
        ("", 0, 0, b"", 0, 0, 0),
        ("xdp", 1, 6, instructions, 0, 0, 0),
        (".maps", 1, 3, bytes(_MAP_BYTES), 0, 0, 0),
        (".relxdp", 9, 0, relocations, symbols, program, 16),
        ("license", 1, 3, b"Apache-2.0\0", 0, 0, 0),
        (".BTF", 1, 0, _btf(entries), 0, 0, 0),
        (".symtab", 2, 0, table, symbols + 1, 1, 24),
    ]
    places = [names.add(section[0]) for section in sections] + [names.add(".strtab")]
    sections.append((".strtab", 3, 0, names.data, 0, 0, 0))
    body, headers = bytes(64), b""
    for place, (_, type_, flags, contents, link, info, size) in zip(places, sections, strict=True):
        body += bytes(-len(body) % 8)
        headers += struct.pack("=IIQQQQIIQQ", place, type_, flags, 0, len(body), len(contents), link, info, 8, size)
        body += contents
    body += bytes(-len(body) % 8)
    order = 1 if sys.byteorder == "little" else 2
    identity = b"\x7fELF" + bytes([2, order, 1]) + bytes(9)
    header = identity + struct.pack(
        "=HHIQQQIHHHHHH", 1, 247, 1, 0, 0, len(body), 0, 64, 0, 0, 64, len(sections), len(sections) - 1
    )
    return header + body[64:] + headers
