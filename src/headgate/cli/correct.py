"""`headgate reset` and `headgate penalize`: setting buckets right by hand."""

from __future__ import annotations

import click

from .command import Command
from .options import Session, change_options
from .output import answer, answer_json, duration


@click.command(cls=Command, short_help="Make buckets full again.", examples=["headgate reset acme llm"])
@click.argument("entity_id", metavar="ENTITY")
@click.argument("resource")
@change_options
def reset(session: Session, entity_id: str, resource: str) -> None:
    """Make the buckets of ENTITY on RESOURCE full again: penalties and debts are forgotten, all slots are free.

    Ancestors keep theirs. A lease that held a slot loses it.
    """
    entity_id = session.stored_id(entity_id)
    with session.limiter() as limiter:
        limiter.reset(entity_id, resource)
    if session.as_json:
        answer_json({"entity_id": entity_id, "resource": resource, "reset": True})
    else:
        answer(f"full again: {entity_id} on {resource}")


@click.command(
    cls=Command,
    short_help="Let nothing pass for a while, or take tokens away.",
    examples=["headgate penalize openai gpt-4o --seconds 30", "headgate penalize openai gpt-4o --factor 0.5"],
)
@click.argument("entity_id", metavar="ENTITY")
@click.argument("resource")
@click.option("--seconds", metavar="N", type=float, help="Let nothing pass for so long.")
@click.option("--factor", metavar="F", type=float, help="Keep this part of the tokens, from 0 to 1.")
@change_options
def penalize(session: Session, entity_id: str, resource: str, seconds: float | None, factor: float | None) -> None:
    """After a vendor's 429: let nothing of ENTITY pass on RESOURCE for a while, or take tokens away, or both.

    It holds for the limits stored for ENTITY and for the buckets it has, whose limits may be kept in code; not for its
    ancestors.
    """
    if seconds is None and factor is None:
        raise click.UsageError("say how: --seconds 30 lets nothing pass for so long, --factor 0.5 halves the tokens")
    entity_id = session.stored_id(entity_id)
    with session.limiter() as limiter:
        limiter.penalize(entity_id, resource, seconds=seconds, factor=factor)
    if session.as_json:
        answer_json({"entity_id": entity_id, "resource": resource, "seconds": seconds, "factor": factor})
        return
    effects = [f"nothing passes for {duration(seconds)}"] if seconds else []
    effects += [] if factor is None else [f"{factor:.0%} of the tokens are left"]
    answer(f"penalized: {entity_id} on {resource}, {' and '.join(effects) or 'for no time at all'}")
