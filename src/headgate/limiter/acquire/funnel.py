"""The funnel: every decision is made by one plan, over groups of asks.

`acquire` and `try_acquire` are one group of one ask, `acquire_many` is one group of several, `try_acquire_each` many
groups. Options, waiting and the outage policy are applied here and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.decide import Answer
from ...core.errors import UNANSWERED, CorruptState, RateLimiterUnavailable, Unanswered
from ...core.names import bucket_key, check_resource
from ...core.units import MILLI
from ...plan import Plan, Settle, SettleEach, SettleHere, Sleep, Whole
from ..config.levels import merge
from ..config.limits import chain_plan
from ..config.namespaces import register_plan
from ..leases.held_slots import HeldSlots, LeaseRecord
from .chain import Chain, Shape
from .group import NOTHING, Ask, AskOutcome, Group, Settled
from .options import Options
from .waiting import HowToSettle, give_back_plan, settle_plan

if TYPE_CHECKING:
    from ..engine import Engine


def decide_plan(engine: Engine, asked: Sequence[Sequence[Ask]], options: Options) -> Plan[list[AskOutcome]]:
    """Decide every group by itself. Either all are decided, or an error is raised and nothing stays taken."""
    groups = [Group(asks) for asks in asked]
    for group in groups:
        yield from _resolve_plan(engine, group, options)
    engine.observers.refresh()
    engine.warm = bool(engine.entered_until) and not engine.closed
    if len(groups) > 1:
        yield from _settle_together_plan([group for group in groups if group.result is None])
    return (yield from conclude_plan(engine, groups, options))


def _resolve_plan(engine: Engine, group: Group, options: Options) -> Plan[None]:
    """Find out from which buckets a group takes, and how much."""
    try:
        for ask in group.asks:
            group.add((yield from chain_plan(engine, ask.entity_id, ask.resource, ask.limits)), ask)
        yield from register_plan(engine)
    except UNANSWERED as why:
        group.result = why
        return
    if any(engine.policy(member.chain, options.on_unavailable) == "local" for member in group.members):
        engine.count_instances()
    group.complete(options)


def _settle_together_plan(groups: Sequence[Group]) -> Plan[None]:
    """One call to the store for all of them."""
    asked_at = time.monotonic()
    results: Sequence[Answer | Unanswered] = (
        (yield from SettleEach([group.request for group in groups])) if groups else []
    )
    for group, result in zip(groups, results):
        group.result = Settled(result, asked_at) if isinstance(result, Answer) else result


def conclude_plan(engine: Engine, groups: Sequence[Group], options: Options) -> Plan[list[AskOutcome]]:
    """What becomes of groups that are resolved, or settled already. If one raises, the others give back."""
    outcomes: list[AskOutcome] = []
    try:
        for group in groups:
            outcome = yield from _outcome_plan(engine, group, options)
            outcomes.append(outcome.by_ask(engine, group))
    except GeneratorExit:
        raise
    except BaseException:
        yield from _undo_plan(engine, groups, outcomes)
        raise
    return outcomes


def _undo_plan(engine: Engine, groups: Sequence[Group], outcomes: Sequence[AskOutcome]) -> Plan[None]:
    for outcome in outcomes:
        for one in outcome.members or (outcome,):
            if one.hold is not None:
                engine.let_go(one.hold)
    for group in groups:
        if isinstance(group.result, Settled) and group.result.answer.allowed:
            yield from give_back_plan(engine, group.request, None, Settle)


def _outcome_plan(engine: Engine, group: Group, options: Options) -> Plan[AskOutcome]:
    try:
        if isinstance(group.result, UNANSWERED):
            raise group.result
        return (yield from _take_plan(engine, group, options, Settle))
    except CorruptState as corrupt:
        return AskOutcome(group.chain, error=corrupt)
    except RateLimiterUnavailable as unavailable:
        return (yield from _unavailable_plan(engine, group, unavailable, options))


def _unavailable_plan(
    engine: Engine, group: Group, unavailable: RateLimiterUnavailable, options: Options
) -> Plan[AskOutcome]:
    """The outage policy. Under "local" the limits are those that were known before."""
    policy = engine.policy(group.members[0].chain if group.members else None, options.on_unavailable)
    if policy == "allow":
        return AskOutcome(NOTHING, degraded=True)
    if policy == "block" or not _known_before(engine, group):
        raise unavailable
    group.result = None
    group.complete(options, here=True)
    return (yield from _take_plan(engine, group, options, SettleHere))


def _known_before(engine: Engine, group: Group) -> bool:
    for ask in group.asks[len(group.members) :]:
        chain = _last_known(engine, ask)
        if chain is None:
            return False
        group.add(chain, ask)
    return True


def _last_known(engine: Engine, ask: Ask) -> Chain | None:
    """As it was before the store became unavailable. If nothing was read: the limiter's own limits, if they suffice."""
    known, own = engine.cache.last_known(ask.entity_id, ask.resource), engine.limits
    if known is None:
        if ask.limits is None and not (own and isinstance(ask.consume, Mapping) and ask.consume.keys() <= own.keys()):
            return None
        key = bucket_key(engine.namespace, engine.stored_id(ask.entity_id), check_resource(ask.resource))
        known = Chain((key,), Shape([own], [1], merge((), own, 0).sources, own=own))
    return known if ask.limits is None else known.under(ask.limits)


def _take_plan(engine: Engine, group: Group, options: Options, settle: HowToSettle) -> Plan[AskOutcome]:
    """Take, and wait if tokens were taken from the future. Whatever ends the wait early gives them back."""
    chain, request, here = group.chain, group.request, settle is SettleHere
    settled = group.result
    if not isinstance(settled, Settled):
        settled = yield from settle_plan(engine, request, settle)
    answer = settled.answer
    if not answer.allowed or not (request.lease_id or answer.wait_ms):
        return AskOutcome(chain, request.parts, answer, settled.max_wait_ms, degraded=here)
    hold = None
    if request.lease_id:
        hold = engine.keep(HeldSlots(request, settled.asked_at, options.on_lost, here=here))
    if answer.wait_ms or options.record_lease:
        yield from _begin_plan(engine, group, answer, hold, options, settle)
    waited = settled.queued or bool(answer.wait_ms)
    return AskOutcome(chain, request.parts, answer, settled.max_wait_ms, hold, here, waited)


def _begin_plan(
    engine: Engine, group: Group, answer: Answer, hold: HeldSlots | None, options: Options, settle: HowToSettle
) -> Plan[Any]:
    """Wait for the turn, and record the lease."""
    request = group.request
    try:
        if answer.wait_ms:
            with engine.slot_queues.asleep():
                yield from Sleep(answer.wait_ms / MILLI)
        if hold is not None and options.record_lease and settle is Settle:
            hold.record = LeaseRecord(engine.namespace, hold, restore=options.restore_on_expiry)
            yield from hold.record.write_plan(group.chain, request.parts)
    except GeneratorExit:
        raise
    except BaseException:
        if hold is not None and hold.record is not None:
            yield from Whole(partial(give_back_plan, engine, request, hold, settle))
        else:
            yield from give_back_plan(engine, request, hold, settle)
        raise
