"""`netreplay checkpoint`: what a checkpoint file holds."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from netreplay._checkpoint import inspect
from netreplay.memory import human


@click.command()
@click.argument("path", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with the whole spec.")
def checkpoint(path: str, as_json: bool) -> None:
    """Show what the checkpoint FILE holds. Reads all of it; exit code 2 and the reason when it is not whole."""
    info = inspect(path)
    if as_json:
        click.echo(json.dumps(asdict(info), indent=2))
        return
    click.echo(f"{info.path}: whole, {human(info.bytes)}: {info.steps} steps, {info.streams} streams")
    for name, items in info.items.items():
        table = info.spec.tables[name]
        click.echo(f"table {name}: {items} of {info.capacities[name]} items, over store {table.store}, {table.sampler}")
