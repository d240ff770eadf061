"""The netreplay command. Subcommands are loaded when called; errors are one line and exit code 2, never a traceback."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import click

from netreplay.errors import NetreplayError

# name: (module, attribute, what it does)
_COMMANDS = {
    "serve": ("netreplay.appliance.serve", "serve", "Serve a replay memory until SIGINT or SIGTERM."),
    "tables": ("netreplay.appliance.look", "tables", "Show what is in the tables of a server."),
    "ping": ("netreplay.appliance.look", "ping", "Measure round trips to a server."),
    "latency": ("netreplay.clients.latency", "latency", "Measure what calls cost: client, wire and server apart."),
    "checkpoint": (
        "netreplay.appliance.checkpoint",
        "checkpoint",
        "Show what a checkpoint file holds, and whether it is whole.",
    ),
    "forward": ("netreplay.appliance.forward", "forward", "Forward UDP to a server, badly (seeded, for tests)."),
    "demo": ("netreplay.clients.demo", "demo", "A server, two actors and a learner on CartPole or an Atari game."),
}


class _Lazy(click.Group):
    """Knows its commands by name; imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, text) for name, (_, _, text) in _COMMANDS.items()]
        rows += [(name, command.get_short_help_str()) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_Lazy)
@click.version_option(package_name="netreplay")
def cli() -> None:
    """An experience-replay memory that lives in the network."""


@cli.command()
def version() -> None:
    """Print the versions of netreplay and DPDK."""
    import netreplay
    from netreplay import dpdk

    click.echo(f"netreplay {netreplay.__version__}")
    try:
        click.echo(dpdk.version())
    except NetreplayError as error:
        click.echo(f"no DPDK: {error}")


def main(arguments: list[str] | None = None) -> Any:
    """Runs the command; the process ends with its code: 0, 2 for a refusal, 130 for Ctrl-C."""
    try:
        code = cli.main(arguments, prog_name="netreplay", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("netreplay: interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except NetreplayError as error:
        click.echo(f"netreplay: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        click.echo("netreplay: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
