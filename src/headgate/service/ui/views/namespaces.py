"""The namespaces of the store, for tokens with the scope `namespaces`: they concern all users of the store."""

from __future__ import annotations

from ....core.errors import HeadgateError, ValidationError
from ....core.names import check_namespace
from ...reading import cursor_of
from ..pages import Answer, Redirect, Shown, Visit, link, page, read_cursor
from ..words import words_of

_PER_PAGE = 100
_EVENTS = 10


@page("GET", "/namespaces", "namespaces")
async def namespaces(visit: Visit) -> Answer:
    return await _list(visit)


@page("POST", "/namespaces/register", "namespaces", changes=True)
async def register(visit: Visit) -> Answer:
    name = visit.form.get("name")
    try:
        await visit.limiter.register_namespace(check_namespace(name), actor=visit.actor)
    except HeadgateError as error:
        return await _list(visit, words_of(error), name)
    return Redirect(link("namespaces"), "registered")


@page("GET", "/namespaces/{name}/delete", "namespaces", changes=True)
async def delete_form(visit: Visit) -> Answer:
    name = visit.parts["name"]
    return Shown("namespace_delete.html", {"name": name, "count": await visit.limiter.count_namespace(name)})


@page("POST", "/namespaces/{name}/delete", "namespaces", changes=True)
async def delete(visit: Visit) -> Answer:
    if visit.parts["name"] in (visit.dashboard.service.namespace, visit.token.namespace):
        raise ValidationError("you are in this namespace: it cannot be deleted from here")
    await visit.limiter.delete_namespace(visit.parts["name"], actor=visit.actor)
    return Redirect(link("namespaces"), "namespace-deleted")


@page("POST", "/namespaces/{name}/recover", "namespaces", changes=True)
async def recover(visit: Visit) -> Answer:
    await visit.limiter.recover_namespace(visit.parts["name"], actor=visit.actor)
    return Redirect(link("namespaces"), "recovered")


@page("GET", "/namespaces/{name}/purge", "namespaces", changes=True)
async def purge_form(visit: Visit) -> Answer:
    return await _purge(visit)


@page("POST", "/namespaces/{name}/purge", "namespaces", changes=True)
async def purge(visit: Visit) -> Answer:
    """The name must be typed. An orphan is what is left of a purged namespace."""
    name, confirm = visit.parts["name"], visit.form.get("confirm")
    if confirm != name:
        return await _purge(visit, f"type {name} to confirm, exactly as it is written")
    if name in await visit.limiter.list_orphans():
        await visit.limiter.purge_orphan(name, confirm=confirm, actor=visit.actor)
    else:
        await visit.limiter.purge_namespace(name, confirm=confirm, actor=visit.actor)
    return Redirect(link("namespaces"), "purged")


async def _list(visit: Visit, problem: str = "", typed: str = "") -> Shown:
    limiter = visit.limiter
    found = await limiter.list_namespaces(limit=_PER_PAGE, cursor=read_cursor(visit.query))
    context = {
        "namespaces": found,
        "cursor": cursor_of(found),
        "corrupt": found.corrupt,
        "orphans": await limiter.list_orphans(),
        "events": await limiter.get_namespace_events(limit=_EVENTS),
        "problem": problem,
        "typed": typed,
    }
    return Shown("namespaces.html", context, 422 if problem else 200)


async def _purge(visit: Visit, problem: str = "") -> Shown:
    name = visit.parts["name"]
    orphan = name in await visit.limiter.list_orphans()
    count = None if orphan else await visit.limiter.count_namespace(name)
    return Shown(
        "namespace_purge.html",
        {"name": name, "count": count, "orphan": orphan, "problem": problem},
        422 if problem else 200,
    )
