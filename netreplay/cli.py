"""The netreplay command."""

from __future__ import annotations

import click


@click.group()
@click.version_option(package_name="netreplay")
def main() -> None:
    """An experience-replay memory that lives in the network."""
