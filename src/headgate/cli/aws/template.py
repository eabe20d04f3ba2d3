"""`headgate aws template` and `export-lambda`: what somebody needs who deploys by other means."""

from __future__ import annotations

import json

import click

from ...aws import stack
from ..command import CliCommand
from ..options import json_option
from ..output import answer, answer_json, number


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
    help="The file; one that is there is replaced.",
)
@json_option
def export_lambda(output: str, as_json: bool) -> None:
    """Write the code of the functions to a file, ready for Lambda.

    It has of headgate what the functions need, and is the same, byte for byte, each time. boto3 is there already.
    """
    package = stack.export_lambda(output)
    if as_json:
        answer_json({"output": output, "bytes": len(package.data), "digest": package.digest, "files": [*package.names]})
    else:
        answer(f"written: {output}, {number(len(package.data))} bytes, {len(package.names)} files")
