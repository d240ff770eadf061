"""The canonical text of a spec, which a server tells its clients: sizes resolved, layouts spelt out for any language.

A Python client reads the spec part, reckons the rest itself and compares: what differs is named, never guessed at.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from netreplay.errors import BadVersionError, MalformedError, SpecError
from netreplay.layout import row_layout, step_layout
from netreplay.memory import resolve
from netreplay.spec import ColumnSpec, Limiter, ParameterSpec, Spec, StoreSpec, TableSpec, Window

FORMAT = 1


def to_document(spec: Spec) -> dict[str, Any]:
    """The text's content; "spec" is the law, "layout" follows from it."""
    resolved = resolve(spec)
    steps = {name: step_layout(store, name) for name, store in resolved.stores.items()}
    rows = {name: row_layout(table, steps[table.store], name) for name, table in resolved.tables.items()}
    return {
        "format": FORMAT,
        "spec": asdict(resolved),
        "layout": {
            "stores": {
                name: {
                    "step_bytes": layout.step_bytes,
                    "observation_bytes": layout.observation_bytes,
                    "columns": [column._asdict() for column in layout.columns],
                }
                for name, layout in steps.items()
            },
            "tables": {
                name: {
                    "row_bytes": layout.row_bytes,
                    "fields": [field._asdict() for field in layout.fields],
                    "gathers": [list(gather) for gather in layout.gathers],
                }
                for name, layout in rows.items()
            },
        },
    }


def to_json(spec: Spec) -> str:
    """Canonical: the same spec always gives the same text."""
    return json.dumps(to_document(spec), separators=(",", ":"))


def _column(value: dict[str, Any]) -> ColumnSpec:
    return ColumnSpec(value["dtype"], tuple(value["shape"]))


def _parse(value: dict[str, Any]) -> Spec:
    stores = {}
    for name, store in value["stores"].items():
        columns = {kind: {k: _column(v) for k, v in store[kind].items()} for kind in ("observation", "action")}
        stores[name] = StoreSpec(**{**store, **columns})
    tables = {
        name: TableSpec(**{**table, "window": Window(**table["window"]), "limiter": Limiter(**table["limiter"])})
        for name, table in value["tables"].items()
    }
    sets = {name: ParameterSpec(**entry) for name, entry in value["parameters"].items()}
    return Spec(stores=stores, tables=tables, parameters=sets)


def from_json(text: str) -> Spec:
    """The spec of a server's text, its layouts compared with this client's own."""
    try:
        document = json.loads(text)
        found = document["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MalformedError("the server's spec is not the JSON that a netreplay server sends") from None
    if found != FORMAT:
        raise BadVersionError(
            f"the server's spec has format {found!r}, this client reads {FORMAT}: install equal versions"
        )
    try:
        spec = _parse(document["spec"])
        own = json.loads(to_json(spec))
    except SpecError as error:
        raise MalformedError(f"the server's spec is refused: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise MalformedError(f"the server's spec lacks or misplaces {error}") from None
    difference = first_difference(own, document)
    if difference is not None:
        raise BadVersionError(
            f"the server lays its rows out differently (here, there): {difference}: install equal versions"
        )
    return spec


def first_difference(ours: Any, theirs: Any, path: str = "") -> str | None:
    """The first key path at which two JSON-like values differ, with both values; None when they are equal."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in [*ours, *(k for k in theirs if k not in ours)]:
            where = f"{path}.{key}" if path else str(key)
            if key not in ours or key not in theirs:
                side = "there" if key not in ours else "here"
                return f"{where} is only {side}"
            found = first_difference(ours[key], theirs[key], where)
            if found is not None:
                return found
        return None
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple) and len(ours) == len(theirs):
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            found = first_difference(a, b, f"{path}[{index}]")
            if found is not None:
                return found
        return None
    return None if ours == theirs and type(ours) is type(theirs) else f"{path}: {ours!r} and {theirs!r}"


def compare_specs(ours: Spec, theirs: Spec) -> str | None:
    """The first difference between a client's spec and its server's, both resolved."""
    mine, other = to_document(ours)["spec"], to_document(theirs)["spec"]
    return first_difference(mine, other)
