"""`headgate aws deploy` and `update`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from ...aws.stack import Deployed, StackOptions
from ...aws.stack.options import Parameter, parameters
from ..command import CliCommand
from ..output import TextTable, answer, answer_json
from ..values import read_pairs
from .place import Place, place_options
from .progress import goes_on, progress

# Given by --namespace, which is the name of it.
_NOT_HERE = ("namespace_id",)


def stack_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """An option for every parameter of the template, and what is not a parameter."""
    for option, parameter in reversed([*parameters()]):
        if option not in _NOT_HERE:
            function = _option(option, parameter)(function)
    for made in reversed(_MORE):
        function = made(function)
    return function


_MORE = (
    click.option(
        "--namespace",
        metavar="NAME",
        help="Register this namespace and restrict the policies to it; '' is for the whole table, as at first.",
    ),
    click.option(
        "--functions/--no-functions",
        default=None,
        help="With or without the functions; without them, run `headgate aws aggregate` somewhere. Default: with.",
    ),
    click.option("--tag", metavar="KEY=VALUE", multiple=True, help="A tag for everything in the stack. Repeatable."),
    click.option(
        "--code-bucket",
        metavar="BUCKET",
        help="A bucket of yours for the functions' code; without one, headgate makes one.",
    ),
)


def _option(option: str, parameter: Parameter) -> Callable[[Any], Any]:
    spelled = option.replace("_", "-").removesuffix("-arn")
    default = {True: "on", False: "off", "": "none"}.get(parameter.default, parameter.default)
    about = f"{parameter.about} Default: {default}."
    if parameter.kind is bool:
        return click.option(f"--{spelled}/--no-{spelled}", option, default=None, help=about)
    number = parameter.kind is int
    return click.option(f"--{spelled}", option, metavar="N" if number else "TEXT", type=parameter.kind, help=about)


@click.command(
    cls=CliCommand,
    short_help="Make the stack, or bring it up to date.",
    examples=[
        "headgate aws deploy",
        "headgate aws deploy --name limits --region eu-west-1 --deletion-protection --alarm-email ops@example.com",
        "headgate aws deploy --namespace blue",
    ],
)
@stack_options
@place_options
def deploy(place: Place, **given: Any) -> None:
    """Make the stack, or bring the one there is up to date.

    The stack is the table with its stream, the aggregator and the reconciler, alarms, an archive for audit events, and
    policies for programs, administrators and readers. What is not said stays as it is, and is the default in a new
    stack. Asked twice for the same, the second time changes nothing. If the first deploy fails, nothing is left of it.
    """
    _bring(place, "deploy", **given)


@click.command(
    cls=CliCommand,
    short_help="Bring the stack up to date.",
    examples=[
        "headgate aws update",
        "headgate aws update --no-deletion-protection",
        "headgate aws update --memory-mb 512",
    ],
)
@stack_options
@place_options
def update(place: Place, **given: Any) -> None:
    """Bring a stack that is there up to date: to this headgate's template and code, and to what is said.

    What is not said stays as it is. While it is changed, tokens are taken as ever; if the change fails, it is undone.
    """
    _bring(place, "update", **given)


def _bring(
    place: Place,
    how: str,
    *,
    namespace: str | None,
    functions: bool | None,
    tag: Sequence[str],
    code_bucket: str | None,
    **options: Any,
) -> None:
    chosen = StackOptions(**options)
    tags = read_pairs(tag, "KEY=VALUE, like team=platform") if tag else None
    with place.stack() as stack, goes_on(place.name), progress(place.as_json) as on_event:
        done: Deployed = getattr(stack, how)(
            chosen, namespace=namespace, functions=functions, tags=tags, code_bucket=code_bucket, on_event=on_event
        )
    if place.as_json:
        answer_json(done.as_dict())
    else:
        answer(f"{done.action}: {done.name}", _table(done))


def _table(done: Deployed) -> TextTable:
    outputs = done.outputs
    rows = [
        ["url", done.url],
        ["namespace", f"{done.namespace} ({done.namespace_id})" if done.namespace else ""],
        ["for programs", outputs.get("AppPolicyArn", "")],
        ["for administrators", outputs.get("AdminPolicyArn", "")],
        ["for readers", outputs.get("ReadOnlyPolicyArn", "")],
        ["archive", outputs.get("ArchiveBucketName", "")],
    ]
    return TextTable(["", ""], [row for row in rows if row[1]])
