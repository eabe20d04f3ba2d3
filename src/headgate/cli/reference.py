"""Generates the page docs/cli.md from the commands: python -m headgate.cli.reference > docs/cli.md"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator

import click

from .app import app
from .command import CliCommand
from .errors import MEANINGS
from .options import change_options

_INTRODUCTION = """\
# The command line

`headgate` comes with the extra `cli`: `pip install 'headgate[cli]'`. The library can do everything that it does, with
the same names.

```
headgate demo
headgate check me api --consume rpm=1 --limit rpm=5/minute
headgate buckets me
```

This page is generated from the help of the commands. `headgate COMMAND --help` shows the same.

## The store

By default a command uses an SQLite file in your data directory (`~/.local/share/headgate/headgate.db` on Linux,
`~/Library/Application Support/headgate/headgate.db` on macOS), and creates it when necessary. `--url` chooses another
store, and an environment variable chooses it for all commands. `sqlite:///name.db` is relative to the working
directory, `sqlite:////var/lib/name.db` is absolute. `memory://` exists only while the command runs: use it to try how a
limit is written.

| environment variable | instead of |
|---|---|
| `HEADGATE_URL` | `--url` |
| `HEADGATE_NAMESPACE` | `--namespace` |
| `HEADGATE_HASH_ENTITY_IDS=1` | `--hash-entity-ids` |
| `HEADGATE_ACTOR` | `--actor`, of commands that change something |

With `--hash-entity-ids` a command finds what a limiter with
[`hash_entity_ids`](serving.md#callers-named-by-a-secret) has stored, and shows only hashes. If `HEADGATE_HASH_KEY` is
set, its bytes are the key. There is no option for the key, because other users of the machine can see the arguments of
a command; they can see the ids too. Without `--hash-entity-ids` a hash is an ordinary id:
`headgate buckets 414127b6...`.

The commands of `headgate aws` use a stack, with `--name` and `--region`, instead of a store: see [AWS](aws.md).
[Operating](operating.md) shows how operators use the others.

## Options that commands share
"""

_JSON = """\
With `--json` the output is one JSON document on standard output, and an error is one on standard error:
`{"error": "validation_error", "message": "..."}`.
"""


def reference() -> str:
    """The whole page."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield from _table(_common_options())
    yield _JSON
    yield "## Exit codes\n"
    yield "| code | meaning |\n|---|---|"
    for code, meaning in MEANINGS.items():
        yield f"| {code} | {meaning} |"
    yield ""
    yield from _commands(app, click.Context(app, info_name="headgate"), "##")


def _commands(group: click.Group, context: click.Context, level: str) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield f"{level} {inner.command_path}\n"
        yield _prose(command.help or "")
        if isinstance(command, click.Group):
            yield from _commands(command, inner, level + "#")
        else:
            yield from _command(command, inner)


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"```\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
    yield from _options([option for option in command.params if isinstance(option, click.Option)])
    if isinstance(command, CliCommand):
        yield "\n".join(["```", *command.examples, "```\n"])


def _options(options: list[click.Option]) -> Iterator[str]:
    common = {option.help for option in _common_options()}
    own = [option for option in options if option.help not in common]
    if own:
        yield from _table(own)
    shared = ", ".join(f"`{option.opts[0]}`" for option in options if option.help in common)
    yield f"[Shared options](#options-that-commands-share): {shared}.\n"


def _common_options() -> list[click.Option]:
    command = click.command("any")(change_options(lambda session: None))
    return [option for option in command.params if isinstance(option, click.Option)]


def _table(options: list[click.Option]) -> Iterator[str]:
    yield "| option | meaning |\n|---|---|"
    for option in options:
        spelled = ", ".join([*option.opts, *option.secondary_opts])
        value = f" {option.metavar}" if option.metavar else ""
        default = f" Default: {option.default}." if option.show_default else ""
        variable = f" Environment variable: `{option.envvar}`." if option.envvar else ""
        yield f"| `{spelled}{value}` | {option.help}{default}{variable} |"
    yield ""


def _prose(text: str) -> str:
    """Paragraphs, wrapped; one that starts with \\b keeps its layout."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            paragraphs.append(f"```\n{textwrap.dedent(paragraph.lstrip(chr(8) + chr(10)))}\n```")
        else:
            paragraphs.append(textwrap.fill(" ".join(paragraph.split()), 118, break_on_hyphens=False))
    return "\n\n".join(paragraphs) + "\n"


if __name__ == "__main__":
    click.echo(reference(), nl=False)
