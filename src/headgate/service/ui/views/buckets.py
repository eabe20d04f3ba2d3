"""Buckets: how full they are, resetting and penalizing them."""

from __future__ import annotations

from collections.abc import Iterable

from ....core.errors import ValidationError
from ....limiter import BucketStatus
from ...reading import cursor_of
from ..pages import Answer, Context, Redirect, Shown, Visit, link, page, read_cursor
from ..words import words_of

_SHOWN = 12


def tightest(buckets: Iterable[BucketStatus], count: int = _SHOWN) -> list[BucketStatus]:
    """The buckets with the smallest share left, blocked ones first."""

    def room(bucket: BucketStatus) -> tuple[bool, float]:
        return not bucket.blocked_for_seconds, bucket.available / bucket.limit.capacity

    unique = {(bucket.entity_id, bucket.resource, bucket.limit.name): bucket for bucket in buckets}
    return sorted(unique.values(), key=room)[:count]


@page("GET", "/buckets")
async def buckets(visit: Visit) -> Answer:
    """A page in the order of the store, so that the others need not be read."""
    resource = visit.query.or_none("resource")
    found = await visit.limiter.list_buckets(resource, cursor=read_cursor(visit.query))
    return Shown(
        "buckets.html",
        {
            "buckets": tightest(found, 100),
            "count": len(found),
            "resource": resource or "",
            "cursor": cursor_of(found),
            "corrupt": found.corrupt,
        },
    )


@page("GET", "/entities/{entity_id}/reset", "admin")
async def reset_form(visit: Visit) -> Answer:
    return Shown("reset.html", await _place(visit, visit.query.get("resource")))


@page("POST", "/entities/{entity_id}/reset", "admin")
async def reset(visit: Visit) -> Answer:
    entity_id = visit.parts["entity_id"]
    await visit.limiter.reset(entity_id, visit.form.get("resource"), actor=visit.actor)
    return Redirect(link("entities", entity_id), "reset")


@page("GET", "/entities/{entity_id}/penalize", "admin")
async def penalize_form(visit: Visit) -> Answer:
    place = await _place(visit, visit.query.get("resource"))
    return Shown("penalize.html", {**place, "seconds": "60", "factor": "", "problem": "", "sure": False})


@page("POST", "/entities/{entity_id}/penalize", "admin")
async def penalize(visit: Visit) -> Answer:
    entity_id, resource = visit.parts["entity_id"], visit.form.get("resource")
    given = {"seconds": visit.form.get("seconds"), "factor": visit.form.get("factor")}
    place = await _place(visit, resource)
    try:
        seconds, factor = (_amount(text, name) for name, text in given.items())
        if seconds is None and factor is None:
            raise ValidationError("enter for how many seconds nothing passes, or which share of the tokens is left")
        if visit.form.get("step") != "confirm":
            return Shown("penalize.html", {**place, **given, "problem": "", "sure": True})
        by = visit.actor
        await visit.limiter.penalize(entity_id, resource, seconds=seconds, factor=factor, actor=by)
    except ValidationError as error:
        return Shown("penalize.html", {**place, **given, "problem": words_of(error), "sure": False}, 422)
    return Redirect(link("entities", entity_id), "penalized")


def _amount(text: str, what: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        raise ValidationError(f"{what} must be a number, not {text[:40]!r}") from None


async def _place(visit: Visit, resource: str) -> Context:
    entity_id = visit.parts["entity_id"]
    found = await visit.limiter.get_buckets(entity_id, resource)
    return {"entity_id": entity_id, "resource": resource, "buckets": found}
