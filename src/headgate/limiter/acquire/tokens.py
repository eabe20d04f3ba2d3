"""Everything that moves or reads tokens without a lease."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from ...core.decide import Mode, Part, Parts, Request
from ...core.errors import ValidationError
from ...core.limit import OWN, Limit
from ...core.names import StoredId, bucket_key, check_resource, parse_bucket_key
from ...core.units import MILLI, seconds_to_ms, signed_tokens_to_milli, tokens_to_milli
from ...plan import DeleteBuckets, Plan, Settle, Whole
from ..config.limits import chain_plan
from ..config.namespaces import register_plan
from ..engine import Engine
from ..observe.audit import audited_plan
from ..observe.overview import all_buckets_plan
from .chain import Chain, Shape
from .decision import looking_ahead


def available_plan(
    engine: Engine, entity_id: str, resource: str, limits: Iterable[Limit] | None = None
) -> Plan[dict[str, int]]:
    """Whole tokens an acquire could take now, by limit name: the lowest of the chain, negative in debt."""
    chain = yield from chain_plan(engine, entity_id, resource, limits)
    request = Request(Mode.PEEK, chain.keys, chain.shape.spread(dict.fromkeys(chain.limits(), 0)))
    answer = yield from Settle(request)
    lowest: dict[str, int] = {}
    for part, (available_milli, _) in zip(request.parts, answer.levels):
        name = part.limit.name
        lowest[name] = min(available_milli // MILLI, lowest.get(name, available_milli // MILLI))
    return lowest


def time_until_available_plan(
    engine: Engine,
    entity_id: str,
    resource: str,
    needed: Mapping[str, Any],
    limits: Iterable[Limit] | None = None,
) -> Plan[float | None]:
    """Seconds until an acquire of `needed` would pass: 0.0 if now, None if never."""
    chain = yield from chain_plan(engine, entity_id, resource, limits)
    parts = chain.shape.spread(chain.amounts(needed))
    answer = looking_ahead(engine, chain, parts, (yield from Settle(Request(Mode.PEEK, chain.keys, parts))))
    return None if answer is None or answer.wait_ms is None else answer.wait_ms / MILLI


def adjust_plan(
    engine: Engine,
    entity_id: str,
    resource: str,
    amounts: Mapping[str, Any],
    limits: Iterable[Limit] | None = None,
) -> Plan[None]:
    """Correct consumption without a lease: +n was used, -n comes back. Never refuses; counts on the whole chain."""
    adjust = partial(_adjust_plan, engine, entity_id, resource, amounts, limits)
    if engine.cache.get(entity_id, resource) is None or not engine.entered_until:
        yield from Whole(adjust)  # cancelled while limits are read or the namespace is registered, it still lands
    else:
        yield from adjust()


def _adjust_plan(
    engine: Engine,
    entity_id: str,
    resource: str,
    amounts: Mapping[str, Any],
    limits: Iterable[Limit] | None,
) -> Plan[None]:
    chain = yield from chain_plan(engine, entity_id, resource, limits)
    yield from register_plan(engine)
    if not isinstance(amounts, Mapping) or not amounts:
        raise ValidationError(f"amounts must name at least one limit, like {{'tpm': 120}}, not {amounts!r}")
    chain.check_tokens(amounts)
    milli = {name: signed_tokens_to_milli(amount, f"amount of {name!r}") for name, amount in amounts.items()}
    yield from Settle(Request(Mode.FORCE, chain.keys, chain.shape.spread(milli)))


def penalize_plan(
    engine: Engine,
    entity_id: str,
    resource: str,
    *,
    seconds: float | None = None,
    factor: float | None = None,
    limits: Iterable[Limit] | None = None,
    actor: str | None = None,
) -> Plan[None]:
    """After a vendor's 429: let nothing pass for `seconds`, or keep only `factor` (0 to 1) of the tokens, or both.

    It holds for the entity's own buckets, not for its ancestors'.
    """
    if seconds is None and factor is None:
        raise ValidationError("penalize needs seconds= or factor=")
    block_ms = 0 if seconds is None else seconds_to_ms(seconds, "seconds", least_ms=0)
    keep_milli = MILLI
    if factor is not None:
        keep_milli = 0 if factor == 0 else tokens_to_milli(factor, "factor", most=1)
    chain = yield from chain_plan(engine, entity_id, resource, limits)
    yield from register_plan(engine)
    _, stored_id, _ = parse_bucket_key(chain.keys[0])
    own: Parts = ()
    if limits is None:
        own = yield from _in_use_plan(engine, StoredId(stored_id), resource)
    after = {
        "seconds": None if seconds is None else block_ms / MILLI,
        "factor": None if factor is None else keep_milli / MILLI,
    }
    penalize = penalize_chain_plan(chain, block_ms, keep_milli, own)
    tell = partial(audited_plan, engine, "buckets.penalized", penalize, entity_id=stored_id, resource=resource)
    yield from Whole(partial(tell, after=after, actor=actor))
    engine.observers.tell("penalized", entity_id=stored_id, resource=resource, seconds=seconds, factor=factor)


def _in_use_plan(engine: Engine, stored_id: StoredId, resource: str) -> Plan[Parts]:
    """The buckets there are. Their limits may be kept in the code of programs, where nothing stored tells of them."""
    rows = yield from all_buckets_plan(engine, stored_id, resource)
    states = [state for row in rows for state in row.buckets if not state.limit.name.startswith(OWN)]
    return tuple(Part(0, state.limit, 0, state.revision) for state in states)


def penalize_chain_plan(chain: Chain, block_ms: int, keep_milli: int = MILLI, in_use: Parts = ()) -> Plan[None]:
    """`in_use`: buckets of the entity's that are penalized with those of its limits."""
    limits = chain.shape.levels[0] if in_use else chain.limits()
    own = Shape([limits], chain.shape.revisions).spread(dict.fromkeys(limits, 0))
    others = tuple(part for part in in_use if part.limit.name not in limits)
    request = Request(Mode.PENALIZE, chain.keys[:1], (*own, *others), block_ms=block_ms, keep_milli=keep_milli)
    yield from Settle(request)


def reset_plan(engine: Engine, entity_id: str, resource: str, *, actor: str | None = None) -> Plan[None]:
    """Make the entity's buckets on the resource full again, penalties and debts forgotten, all slots free.

    Ancestors keep theirs. A lease that held a slot loses it.
    """
    stored_id = engine.stored_id(entity_id)
    key = bucket_key(engine.namespace, stored_id, check_resource(resource))
    rows = yield from all_buckets_plan(engine, stored_id, resource)
    before = {state.limit.name: state.available_milli() // MILLI for row in rows for state in row.buckets}
    tell = partial(audited_plan, engine, "buckets.reset", DeleteBuckets([key]), entity_id=stored_id, resource=resource)
    yield from Whole(partial(tell, before={"available": before}, actor=actor))
