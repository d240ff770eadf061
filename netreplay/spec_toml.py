"""Reads specs and sizes from TOML; every complaint names the key's path and its value."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from netreplay.errors import SpecError
from netreplay.spec import ColumnSpec, Limiter, ParameterSpec, Spec, StoreSpec, TableSpec, Window

T = TypeVar("T")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")


def read(source: str | Path) -> dict[str, Any]:
    """TOML from a file, or from text where it has a line break or "="."""
    if isinstance(source, str) and ("\n" in source or "=" in source):
        text, name = source, "TOML text"
    else:
        path = Path(source)
        name = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise SpecError(f"{name}: cannot be read: {error.strerror}", path=name, value=name) from None
        except UnicodeDecodeError:
            raise SpecError(f"{name}: is not UTF-8 text", path=name, value=name) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{name}: is not TOML: {error}", path=name, value=None) from None


def refuse(path: str, value: Any, complaint: str) -> SpecError:
    """A SpecError at a key's path."""
    return SpecError(f"{path}: {value!r} {complaint}", path=path, value=value)


def table_at(path: str, value: Any) -> dict[str, Any]:
    """value, which must be a TOML table"""
    if not isinstance(value, dict):
        raise refuse(path, value, "is not a table of keys")
    return value


def only(path: str, value: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Refuses keys that nobody would read."""
    known = list(allowed)
    for key in value:
        if key not in known:
            where = f"{path}.{key}" if path else key
            raise refuse(where, value[key], f"stands at a key that is not known; known are: {', '.join(known)}")


def parse_bytes(path: str, value: Any) -> int:
    """A size: a whole number of bytes, or text such as "64 MiB" or "1.5 GB"."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None or match[2].upper() not in _UNITS:
        raise refuse(path, value, 'is not a size, such as 1000000 or "64 MiB"')
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _under(path: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except SpecError as error:
        inner, value = error.path, error.value
        complaint = str(error).removeprefix(f"{inner}: ")
        raise SpecError(f"{path}.{inner}: {complaint}", path=f"{path}.{inner}", value=value) from None


def _need(path: str, value: Mapping[str, Any], keys: Iterable[str]) -> None:
    for key in keys:
        if key not in value:
            raise SpecError(f"{path}.{key}: is missing", path=f"{path}.{key}", value=None)


def _columns(path: str, value: Any) -> dict[str, ColumnSpec]:
    columns: dict[str, ColumnSpec] = {}
    for name, column in table_at(path, value).items():
        where = f"{path}.{name}"
        entries = table_at(where, column)
        only(where, entries, ("dtype", "shape"))
        _need(where, entries, ("dtype",))
        columns[name] = _under(where, lambda e=entries: ColumnSpec(**e))  # type: ignore[misc]
    return columns


def _store(path: str, value: Any) -> StoreSpec:
    entries = dict(table_at(path, value))
    only(path, entries, ("observation", "action", "steps", "streams", "in_flight", "bytes"))
    _need(path, entries, ("observation",))
    if "bytes" in entries:
        entries["bytes"] = parse_bytes(f"{path}.bytes", entries["bytes"])
    for kind in ("observation", "action"):
        entries[kind] = _columns(f"{path}.{kind}", entries.get(kind, {}))
    return _under(path, lambda: StoreSpec(**entries))


def _table(path: str, value: Any) -> TableSpec:
    entries = dict(table_at(path, value))
    only(path, entries, TableSpec.__dataclass_fields__)
    _need(path, entries, ("store", "capacity"))
    parts: tuple[tuple[str, type[Window] | type[Limiter]], ...] = (("window", Window), ("limiter", Limiter))
    for key, kind in parts:
        if key in entries:
            part = table_at(f"{path}.{key}", entries[key])
            only(f"{path}.{key}", part, kind.__dataclass_fields__)
            entries[key] = _under(f"{path}.{key}", lambda k=kind, p=part: k(**p))  # type: ignore[misc]
    return _under(path, lambda: TableSpec(**entries))


def _set(path: str, value: Any) -> ParameterSpec:
    entries = dict(table_at(path, value))
    only(path, entries, ("max_bytes",))
    if "max_bytes" in entries:
        entries["max_bytes"] = parse_bytes(f"{path}.max_bytes", entries["max_bytes"])
    return _under(path, lambda: ParameterSpec(**entries))


def parse_spec(document: Mapping[str, Any]) -> Spec:
    """The spec of a TOML document; a [server] part, which is the appliance's, is left alone."""
    only("", document, ("server", "store", "table", "parameters"))
    for key in ("store", "table"):
        if key not in document:
            raise SpecError(f"{key}: is missing; at least one [{key}.NAME] is wanted", path=key, value=None)
    parts = (("store", _store), ("table", _table), ("parameters", _set))
    named: dict[str, dict[str, Any]] = {}
    for key, parse in parts:
        entries = table_at(key, document.get(key, {}))
        named[key] = {name: parse(f"{key}.{name}", value) for name, value in entries.items()}
    return Spec(stores=named["store"], tables=named["table"], parameters=named["parameters"])
