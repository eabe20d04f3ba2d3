"""Histories of all kinds for the stores that decide by a copy of core's arithmetic, to be compared with it."""

from __future__ import annotations

from hypothesis import strategies as st

from headgate import Limit
from headgate.core.calendar import Calendar
from headgate.core.decide import Mode, Part, Request
from headgate.core.limit import AT_ONCE
from headgate.core.slots import OVERTAKES
from headgate.core.units import MAX_AMOUNT, MAX_PERIOD_MS, MILLI
from headgate.core.usage import HOUR_MS

LARGEST = 10**12 * MILLI
DAY = 86_400_000

# Numbers people use, numbers at the ends, and anything in between.
milli = st.one_of(
    st.integers(1, 20_000), st.sampled_from([1, 999, 1000, LARGEST - 1, LARGEST]), st.integers(1, LARGEST)
)
periods_ms = st.one_of(
    st.sampled_from([1, 7, 1000, 60_000, DAY, 30 * DAY, MAX_PERIOD_MS - 1, MAX_PERIOD_MS]),
    st.integers(1, MAX_PERIOD_MS),
)
amounts_milli = st.one_of(milli, st.integers(0, 3), st.sampled_from([MAX_AMOUNT * MILLI, 3 * LARGEST]))
waits_ms = st.one_of(st.just(0), st.just(0), st.integers(1, 100_000), st.integers(1, MAX_PERIOD_MS))
steps_ms = st.one_of(
    st.integers(0, 3),
    st.integers(0, 100_000),
    st.integers(HOUR_MS // 2, 30 * HOUR_MS),
    st.integers(0, 3 * MAX_PERIOD_MS),
    st.integers(-5000, -1),
)
limits = st.builds(Limit.from_stored, st.sampled_from("xyz"), milli, milli, periods_ms)

# Slots are few and times are short, so that they are all taken, and run out.
few_slots = st.one_of(st.integers(1, 4).map(lambda slots: slots * MILLI), st.sampled_from([LARGEST]))
ttls_ms = st.one_of(st.sampled_from([1, 100, 5000, 60_000]), st.integers(1, 10_000), st.just(MAX_PERIOD_MS))
some_slots_milli = st.one_of(
    st.sampled_from([0, 1, 1, 1, 1, 2, 3]).map(lambda slots: slots * MILLI),
    st.sampled_from([1, 500, 1500, LARGEST, MAX_AMOUNT * MILLI]),
)
lease_ids = st.sampled_from(["l1", "l2", "l3", ""])
places_ms = st.sampled_from([0, 0, OVERTAKES, 1, 700, 2500, 30_000])
short_steps_ms = st.sampled_from([0, 0, 1, 400, 999, 1000, 1000, 2500, -300])


def concurrent(names: str) -> st.SearchStrategy[Limit]:
    return st.builds(Limit.from_stored, st.sampled_from(names), few_slots, st.just(0), ttls_ms)


CALENDARS = (
    Calendar.every("hour"),
    Calendar.every("hour", at="00:30"),
    Calendar.every("day", tz="Europe/Berlin", at="02:30"),
    Calendar.every("week", tz="America/New_York", on="sunday"),
    Calendar.every("month", tz="Pacific/Chatham", on=31, at="23:45"),
    Calendar.every("year", on="02-29"),
)


def quotas(names: str) -> st.SearchStrategy[Limit]:
    named, amount, kind = st.sampled_from(names), milli, st.just(AT_ONCE)
    return st.one_of(
        st.builds(Limit.from_stored, named, amount, kind, st.just(0), st.sampled_from(CALENDARS)),
        st.builds(Limit.from_stored, named, amount, kind, periods_ms),
    )


def all_kinds(names: str) -> st.SearchStrategy[Limit]:
    buckets = st.builds(Limit.from_stored, st.sampled_from(names), milli, milli, periods_ms)
    return st.one_of(buckets, quotas(names), quotas(names), concurrent(names))


MODES = [Mode.TAKE] * 4 + [mode for mode in Mode if mode is not Mode.TAKE]
History = list[tuple[int, list[Request]]]


@st.composite
def requests(draw: st.DrawFn, pool: list[Limit], leases: st.SearchStrategy[str]) -> Request:
    mode = draw(st.sampled_from(MODES))
    keys = tuple(draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)))
    parts = []
    for level in range(len(keys)):
        chosen = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3, unique_by=lambda limit: limit.name))
        for limit in chosen:
            amount = draw(some_slots_milli if limit.is_concurrent else amounts_milli)
            if mode is Mode.FORCE and draw(st.booleans()):
                amount = -amount
            parts.append(Part(level, limit, amount, draw(st.integers(0, 3))))
    block_ms, keep_milli = draw(st.sampled_from([0, 0, 1, 5000, DAY])), draw(st.sampled_from([MILLI, 0, 1, 333, 999]))
    lease_id = draw(leases) if any(part.limit.is_concurrent for part in parts) or draw(st.booleans()) else ""
    place_ms = draw(places_ms) if mode is Mode.TAKE and lease_id else 0
    return Request(mode, keys, tuple(parts), draw(waits_ms), block_ms, keep_milli, lease_id, place_ms)


@st.composite
def histories(
    draw: st.DrawFn,
    limits: st.SearchStrategy[Limit] = limits,
    leases: st.SearchStrategy[str] = lease_ids,
    steps_ms: st.SearchStrategy[int] = steps_ms,
) -> History:
    pool = draw(st.lists(limits, min_size=1, max_size=4))
    history = []
    for _ in range(draw(st.integers(1, 6))):
        batch = draw(st.lists(requests(pool, leases), min_size=1, max_size=3))
        repeated = [request for request in batch for _ in range(draw(st.sampled_from([1, 1, 2, 5])))]
        history.append((draw(steps_ms), repeated))
    return history


@st.composite
def crowds(draw: st.DrawFn) -> History:
    """A few leases on one limit, that come and go and come again."""
    limits = st.sampled_from([Limit.concurrent("x", 3, 1), Limit.concurrent("x", 4, 2.5)])
    history = []
    for _ in range(draw(st.integers(5, 15))):
        mode = draw(st.sampled_from([Mode.TAKE, Mode.TAKE, Mode.TAKE, Mode.FORCE, Mode.RENEW, Mode.PEEK]))
        slots = draw(st.sampled_from([-1, -2, -3, 1] if mode is Mode.FORCE else [1, 1, 2, 3, 0]))
        parts = (Part(0, draw(limits), slots * MILLI),)
        place_ms = draw(places_ms) if mode is Mode.TAKE else 0
        request = Request(mode, ("a",), parts, lease_id=draw(lease_ids), place_ms=place_ms)
        history.append((draw(short_steps_ms), [request]))
    return history


@st.composite
def queues(draw: st.DrawFn) -> History:
    """More leases than slots, most of which wait: for one limit, or for two at once."""
    limits = [Limit.concurrent("x", 2, 60), Limit.concurrent("y", 1, 60)]
    history = []
    for _ in range(draw(st.integers(5, 20))):
        mode = draw(st.sampled_from([Mode.TAKE, Mode.TAKE, Mode.TAKE, Mode.TAKE, Mode.FORCE, Mode.FORCE, Mode.PEEK]))
        slots = -2 if mode is Mode.FORCE else draw(st.sampled_from([1, 1, 1, 2]))
        chosen = draw(st.sampled_from([limits[:1], limits[:1], limits]))
        parts = tuple(Part(0, limit, slots * MILLI) for limit in chosen)
        place_ms = draw(st.sampled_from([0, OVERTAKES, 1500, 1500, 1500, 30_000])) if mode is Mode.TAKE else 0
        lease_id = draw(st.sampled_from(["l1", "l2", "l3", "l4", "l5"]))
        request = Request(mode, ("a",), parts, lease_id=lease_id, place_ms=place_ms)
        history.append((draw(st.sampled_from([0, 0, 1, 400])), [request]))
    return history


@st.composite
def alternations(draw: st.DrawFn) -> History:
    """Limits of one name that take turns on a bucket: larger and smaller, faster and slower, of all revisions.

    Takes are near what there is, so that a millitoken more or less shows; some go into debt, some to its very end.
    """
    shapes = st.tuples(milli, milli, periods_ms)
    pool = [Limit.from_stored("x", *shape) for shape in draw(st.lists(shapes, min_size=2, max_size=4, unique=True))]
    modes = st.sampled_from([Mode.TAKE] * 6 + [Mode.FORCE, Mode.FORCE, Mode.PEEK, Mode.LOWER, Mode.PENALIZE])
    history = []
    for _ in range(draw(st.integers(4, 16))):
        batch = []
        for _ in range(draw(st.integers(1, 4))):
            mode, limit = draw(modes), draw(st.sampled_from(pool))
            amount = max(0, limit.capacity_milli // draw(st.sampled_from([1, 1, 2, 3, 7])) - draw(st.integers(0, 1)))
            if mode is Mode.FORCE:
                amount = draw(st.sampled_from([amount, -amount, 1, -1, MAX_AMOUNT * MILLI, -MAX_AMOUNT * MILLI]))
            part = Part(0, limit, amount, draw(st.sampled_from([0, 0, 0, 1, 2, 3])))
            batch += [Request(mode, ("a",), (part,), draw(waits_ms))] * draw(st.sampled_from([1, 1, 2, 5]))
        history.append((draw(steps_ms), batch))
    return history


@st.composite
def quota_turns(draw: st.DrawFn) -> History:
    """Quotas of one name, of a few calendars and from first use, near their edges, of all revisions."""
    windows = st.one_of(
        st.sampled_from([(0, calendar) for calendar in CALENDARS[:3]]),
        st.sampled_from([(period_ms, None) for period_ms in (1, 7, 1000, HOUR_MS, DAY, MAX_PERIOD_MS)]),
    )
    shapes = draw(st.lists(st.tuples(st.sampled_from([1, 2, 3000, LARGEST]), windows), min_size=1, max_size=4))
    pool = [Limit.from_stored("x", milli, AT_ONCE, *window) for milli, window in shapes]
    modes = st.sampled_from([Mode.TAKE] * 6 + [Mode.FORCE, Mode.FORCE, Mode.PEEK, Mode.LOWER, Mode.PENALIZE])
    history = []
    for _ in range(draw(st.integers(4, 16))):
        batch = []
        for _ in range(draw(st.integers(1, 4))):
            mode, limit = draw(modes), draw(st.sampled_from(pool))
            amount = max(0, limit.capacity_milli // draw(st.sampled_from([1, 1, 2, 3, 7])) - draw(st.integers(0, 1)))
            if mode is Mode.FORCE:
                amount = draw(st.sampled_from([amount, -amount, 1, -1, MAX_AMOUNT * MILLI, -MAX_AMOUNT * MILLI]))
            part = Part(0, limit, amount, draw(st.sampled_from([0, 0, 1, 2, 3])))
            block_ms, keep_milli = draw(st.sampled_from([0, 0, 1, 5000])), draw(st.sampled_from([MILLI, 0, 333]))
            request = Request(mode, ("a",), (part,), draw(st.sampled_from([0, 0, 10**9])), block_ms, keep_milli)
            batch += [request] * draw(st.sampled_from([1, 1, 2, 5]))
        steps_ms = st.one_of(
            st.integers(0, 3),
            st.integers(0, 3 * HOUR_MS),
            st.sampled_from([HOUR_MS // 2, HOUR_MS, DAY]),
            st.integers(-2 * HOUR_MS, -1),
        )
        history.append((draw(steps_ms), batch))
    return history
