"""click commands with examples, in their help and in the reference."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import click

from .errors import BAD_INPUT


class CliCommand(click.Command):
    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                # Not wrapped, so that a line can be copied.
                for example in self.examples:
                    formatter.write(f"{' ' * formatter.current_indent}{example}\n")


class CliGroup(click.Group):
    command_class = CliCommand

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of definition

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Versions of click differ in what a group without a command does.
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(BAD_INPUT)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            meant = get_close_matches(name, self.list_commands(ctx), 1)
            hint = f" Did you mean {meant[0]!r}?" if meant else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)
