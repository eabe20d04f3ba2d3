"""Errors as one line or as JSON, and the exit codes."""

from __future__ import annotations

import json
import re

import click

from ..core.errors import EntityExists, EntityNotFound, HeadgateError, NamespaceNotFound, RateLimiterUnavailable

ALLOWED = 0
REFUSED = 1
BAD_INPUT = 2
UNAVAILABLE = 3
INTERRUPTED = 130

MEANINGS = {
    ALLOWED: "success; `check`: allowed",
    REFUSED: "the answer is no: `check` was refused, `apply --plan` found changes, `replay --fail-above` found more "
    "refusals, a `set`, `delete`, `purge` or `migrate --in-place` was not confirmed, `demo` or `loadtest` found a "
    "limit oversold, `doctor` or `aws status` found a problem",
    BAD_INPUT: "bad input: an invalid option, identifier or limit; an entity, namespace or stack that does not exist; "
    "a version conflict; AWS rejected the request",
    UNAVAILABLE: "the store, or AWS, did not answer",
    INTERRUPTED: "interrupted with Ctrl-C",
}


def report(error: HeadgateError | click.ClickException, *, as_json: bool) -> int:
    """Print an error on standard error, and return the exit code."""
    usage = isinstance(error, click.ClickException)
    message = error.format_message() if isinstance(error, click.ClickException) else _message(error)
    if as_json:
        kind = "usage_error" if usage else _snake(type(error).__name__)
        click.echo(json.dumps({"error": kind, "message": message}), err=True)
    else:
        click.echo(f"error: {message}", err=True)
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"see: {error.ctx.command_path} --help", err=True)
    return UNAVAILABLE if isinstance(error, RateLimiterUnavailable) else BAD_INPUT


def _message(error: HeadgateError) -> str:
    """The message of the library, with commands instead of functions."""
    if isinstance(error, EntityNotFound):
        why = error.why and f" ({error.why})"
        return (
            f"entity {error.entity_id!r} does not exist{why}; create it with 'headgate entity create {error.entity_id}'"
        )
    if isinstance(error, EntityExists):
        return f"entity {error.entity_id!r} already exists"
    if isinstance(error, NamespaceNotFound):
        return re.sub(r"(\w+)_namespace\(\)|(list_orphans)\(\)", _namespace_command, str(error))
    if hasattr(error, "problems"):  # of a file: one problem per line
        return str(error)
    return " ".join(str(error).split())


def _namespace_command(function: re.Match[str]) -> str:
    return f"'headgate namespace {function[1] or 'orphans'}'"


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
