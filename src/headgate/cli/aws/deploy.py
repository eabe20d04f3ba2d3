"""`headgate aws deploy`, `update` and `delete`; `template` and `export-lambda`, to deploy with other tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from ...aws import stack
from ...aws.stack import Deployed, StackOptions, StackStatus
from ...aws.stack.options import Parameter, parameters
from ..command import CliCommand
from ..errors import REFUSED
from ..options import json_option
from ..output import TextTable, answer, answer_json, number
from ..values import read_pairs
from .progress import goes_on, progress
from .target import StackTarget, confirmed, target_options

# Set by --namespace, which takes the name.
_NOT_HERE = ("namespace_id",)


def stack_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """An option for every parameter of the template, and those that are not parameters."""
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
        help="Register this namespace and restrict the policies to it; '' lifts the restriction.",
    ),
    click.option(
        "--functions/--no-functions",
        default=None,
        help="With or without functions. Without them, run `headgate aws aggregate` yourself. Default: with.",
    ),
    click.option("--tag", metavar="KEY=VALUE", multiple=True, help="A tag for everything in the stack. Repeatable."),
    click.option(
        "--code-bucket",
        metavar="BUCKET",
        help="Your own bucket for the functions' code. By default, headgate creates one.",
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
    short_help="Create the stack, or update it.",
    examples=[
        "headgate aws deploy",
        "headgate aws deploy --name limits --region eu-west-1 --deletion-protection --alarm-email ops@example.com",
        "headgate aws deploy --namespace blue",
    ],
)
@stack_options
@target_options
def deploy(target: StackTarget, **given: Any) -> None:
    """Create the stack, or update it.

    The stack has the table with its stream, the aggregator and the reconciler, alarms, an archive for audit events, and
    policies for programs, administrators and readers. Settings that you do not pass stay as they are, and have their
    defaults in a new stack. Running it again with the same settings changes nothing. If the first deploy fails, nothing
    is left behind.
    """
    _bring(target, "deploy", **given)


@click.command(
    cls=CliCommand,
    short_help="Update the stack.",
    examples=[
        "headgate aws update",
        "headgate aws update --no-deletion-protection",
        "headgate aws update --memory-mb 512",
    ],
)
@stack_options
@target_options
def update(target: StackTarget, **given: Any) -> None:
    """Update an existing stack to the template and code of the installed headgate, and to the given settings.

    Settings that you do not pass stay as they are. Limiters keep working during the update. If it fails, it is rolled
    back.
    """
    _bring(target, "update", **given)


def _bring(
    target: StackTarget,
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
    with target.stack() as stack, goes_on(target.name), progress(target.as_json) as on_event:
        done: Deployed = getattr(stack, how)(
            chosen, namespace=namespace, functions=functions, tags=tags, code_bucket=code_bucket, on_event=on_event
        )
    if target.as_json:
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


@click.command(
    cls=CliCommand,
    short_help="Delete the stack with its table.",
    examples=["headgate aws delete", "headgate aws delete --name limits --yes --delete-archive"],
)
@click.option("--yes", is_flag=True, help="Do not ask. Required without a terminal.")
@click.option("--delete-archive", is_flag=True, help="Delete the archive of audit events too, with everything in it.")
@target_options
def delete(target: StackTarget, yes: bool, delete_archive: bool) -> int | None:
    """Delete the stack with its table: all limits, entities, buckets and usage.

    It lists what will be lost, and asks for the name of the stack. The archive of audit events stays, unless you pass
    --delete-archive. If the table is protected, run `headgate aws update --no-deletion-protection` first.
    """
    with target.stack() as stack:
        if not (yes or confirmed(target.name, "stack", lambda: _losses(stack.status(), delete_archive))):
            answer("nothing was deleted")
            return REFUSED
        with goes_on(target.name), progress(target.as_json) as on_event:
            done = stack.delete(delete_archive=delete_archive, on_event=on_event)
    if target.as_json:
        answer_json(done.as_dict())
        return None
    answer(f"deleted: {done.name}")
    if done.kept_bucket:
        answer(f"kept: the archive, bucket {done.kept_bucket}")
    return None


def _losses(found: StackStatus, delete_archive: bool) -> list[str]:
    lines = [f"This deletes the stack {found.name}."]
    if found.table is not None:
        of = f" of {len(found.table.namespaces)} namespaces" if len(found.table.namespaces) > 1 else ""
        lines.append(f"  lost: table {found.name} with about {number(found.table.items)} items{of}")
        if found.table.backups:
            lines.append("  left: DynamoDB keeps a last backup of the table for 35 days")
    bucket = found.outputs.get("ArchiveBucketName")
    if bucket:
        lines.append(f"  {'lost' if delete_archive else 'left'}: the archive, bucket {bucket}")
    return lines


@click.command(
    cls=CliCommand,
    short_help="Print the CloudFormation template.",
    examples=["headgate aws template > headgate.yaml", "headgate aws template --json"],
)
@json_option
def template(as_json: bool) -> None:
    """Print the CloudFormation template, as YAML, or as JSON with --json."""
    made = stack.template()
    click.echo(json.dumps(made, indent=2) if as_json else stack.to_yaml(made).rstrip())


@click.command(
    "export-lambda",
    cls=CliCommand,
    short_help="Write the functions' code to a file.",
    examples=["headgate aws export-lambda --output headgate.zip"],
)
@click.option(
    "--output",
    metavar="FILE",
    default="headgate.zip",
    show_default=True,
    help="The file to write; an existing one is replaced.",
)
@json_option
def export_lambda(output: str, as_json: bool) -> None:
    """Write the code of the functions to a file, ready for Lambda.

    It contains only what the functions need of headgate, and is the same, byte for byte, each time. Lambda provides
    boto3.
    """
    package = stack.export_lambda(output)
    if as_json:
        answer_json({"output": output, "bytes": len(package.data), "digest": package.digest, "files": [*package.names]})
    else:
        answer(f"written: {output}, {number(len(package.data))} bytes, {len(package.names)} files")
