"""Properties of slots: who holds what until when."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from headgate import Limit
from headgate.core.bucket import Bucket
from headgate.core.decide import Answer, Mode, Part, Request, decide, refund
from headgate.core.slots import Slots

START = 1_700_000_000_000
MILLI = 1000

leases = st.sampled_from("abcdef")
limits = st.builds(
    lambda slots, ttl_ms: Limit.from_stored("x", slots * MILLI, 0, ttl_ms), st.integers(1, 8), st.integers(1, 10_000)
)
wishes = st.lists(
    st.tuples(
        st.sampled_from(["take", "release", "renew", "peek"]), leases, st.integers(1, 4), st.integers(-100, 4_000)
    ),
    max_size=40,
)


@st.composite
def held(draw: st.DrawFn) -> Slots:
    """Slots that some hold, perhaps more than there are: the limit was larger once."""
    limit = draw(limits)
    holders = draw(
        st.dictionaries(
            leases, st.tuples(st.integers(1, 4).map(lambda slots: slots * MILLI), st.integers(1, limit.period_ms))
        )
    )
    return Slots(limit, START, {lease: (milli, START + ms) for lease, (milli, ms) in holders.items()})


def copy_of(slots: Slots) -> Slots:
    return Slots(slots.limit, slots.settled_at_ms, dict(slots.holders), slots.blocked_until_ms, slots.revision)


def state(slots: Slots) -> tuple[dict[str, tuple[int, int]], int, int, int]:
    return slots.holders, slots.held_milli, slots.settled_at_ms, slots.blocked_until_ms


def ask(slots: Slots, mode: Mode, lease: str, amount: int, now_ms: int, max_wait_ms: int = 0) -> Answer:
    request = Request(mode, ("k",), (Part(0, slots.limit, amount * MILLI),), max_wait_ms, lease_id=lease)
    return decide(request, [slots], now_ms)


@given(limits, wishes)
def test_every_history_equals_a_list_of_who_is_in(limit: Limit, wishes: list[tuple[str, str, int, int]]) -> None:
    """The model counts slots one by one: each has a holder and a moment at which it is free."""
    slots, now = Slots(limit, START), START
    places: list[tuple[str, int]] = []
    for verb, lease, amount, pause in wishes:
        now = max(now, now + pause)  # time never runs backwards
        places = [(holder, until) for holder, until in places if until > now]
        mine = sum(holder == lease for holder, _ in places)
        until = now + limit.period_ms
        if verb == "take":
            fits = len(places) + amount <= limit.capacity
            assert ask(slots, Mode.TAKE, lease, amount, now).allowed is fits
            if fits:
                places = [place for place in places if place[0] != lease] + [(lease, until)] * (mine + amount)
        elif verb == "release":
            ask(slots, Mode.FORCE, lease, -amount, now)
            if mine:
                places = [place for place in places if place[0] != lease] + [(lease, until)] * (mine - amount)
        elif verb == "renew":
            assert ask(slots, Mode.RENEW, lease, 0, now).allowed is (mine > 0)
            places = [(holder, until if holder == lease else its) for holder, its in places]
        answer = ask(slots, Mode.PEEK, lease, 0, now)
        assert answer.levels[0][0] == limit.capacity_milli - len(places) * MILLI
        assert slots.held_milli == len(places) * MILLI <= limit.capacity_milli


@given(held(), st.lists(st.integers(0, 12_000), min_size=1, max_size=8).map(sorted))
def test_settling_in_pieces_is_settling_at_once(slots: Slots, at: list[int]) -> None:
    pieces, once = slots, copy_of(slots)
    for ms in at:
        pieces.settle(START + ms)
    once.settle(START + at[-1])
    assert state(pieces) == state(once)


@given(held(), st.integers(-(10**6), 0))
def test_time_never_runs_backwards(slots: Slots, ms: int) -> None:
    before = copy_of(slots)
    slots.settle(START + ms)
    assert state(slots) == state(before)


@given(held(), st.integers(1, 8), st.integers(0, 15_000))
def test_the_wait_is_exact_if_nobody_renews(slots: Slots, amount: int, block_ms: int) -> None:
    slots.penalize(block_ms, MILLI)
    wait = slots.wait_ms(amount * MILLI)
    if wait is None:
        assert amount > slots.limit.capacity
        return
    if wait:
        assert not ask(copy_of(slots), Mode.TAKE, "new", amount, START + wait - 1).allowed
    assert ask(copy_of(slots), Mode.TAKE, "new", amount, START + wait).allowed


@given(held(), st.integers(1, 8), st.integers(1, 10**9))
def test_slots_cannot_be_had_from_the_future(slots: Slots, amount: int, max_wait_ms: int) -> None:
    wait = slots.wait_ms(amount * MILLI)
    answer = ask(slots, Mode.TAKE, "new", amount, START, max_wait_ms)
    assert answer.allowed is (wait == 0)
    assert ("new" in slots.holders) is answer.allowed


@given(held(), leases, st.integers(1, 4))
def test_what_is_given_back_twice_is_given_back_once(slots: Slots, lease: str, amount: int) -> None:
    others = slots.held_milli - slots.holders.get(lease, (0, 0))[0]
    for _ in range(6):
        ask(slots, Mode.FORCE, lease, -amount, START)
    assert slots.held_milli == others
    assert lease not in slots.holders


@given(held(), leases, st.integers(0, 12_000))
def test_a_renewal_revives_nobody(slots: Slots, lease: str, ms: int) -> None:
    slots.settle(START + ms)
    was_in, others = lease in slots.holders, {name: held for name, held in slots.holders.items() if name != lease}
    answer = ask(slots, Mode.RENEW, lease, 0, START + ms)
    assert answer.allowed is was_in
    assert answer.wait_ms == (0 if was_in else None)
    assert (lease in slots.holders) is was_in
    assert {name: held for name, held in slots.holders.items() if name != lease} == others
    if was_in:
        assert slots.holders[lease][1] == START + ms + slots.limit.period_ms


@given(held(), leases, st.integers(0, 4))
def test_nothing_is_taken_by_force(slots: Slots, lease: str, amount: int) -> None:
    before = copy_of(slots)
    ask(slots, Mode.FORCE, lease, amount, START)
    assert slots.held_milli == before.held_milli


@given(held(), st.permutations("abcdef"), st.integers(0, 12_000))
def test_the_order_of_ending_does_not_matter(slots: Slots, order: list[str], ms: int) -> None:
    """Run out, given back, or both, in whatever order: the slots are free, once."""
    for lease in order[:3]:
        ask(slots, Mode.FORCE, lease, -4, START)
    slots.settle(START + ms)
    for lease in order[3:] + order[:3]:
        ask(slots, Mode.FORCE, lease, -4, START + ms)
    assert (slots.holders, slots.held_milli, slots.available_milli()) == ({}, 0, slots.limit.capacity_milli)


@given(held(), limits, st.integers(1, 4))
def test_under_a_smaller_limit_nobody_is_thrown_out_and_nobody_gets_in(slots: Slots, limit: Limit, amount: int) -> None:
    before = dict(slots.holders)
    slots.reshape(limit)
    assert slots.holders == before
    answer = ask(slots, Mode.TAKE, "new", amount, START)
    assert answer.allowed is (sum(milli for milli, _ in before.values()) + amount * MILLI <= limit.capacity_milli)


@given(held(), limits, st.integers(1, 5), st.integers(1, 5))
def test_an_older_limit_does_not_come_back(slots: Slots, limit: Limit, revision: int, later: int) -> None:
    slots.reshape(limit, revision + later)
    slots.reshape(Limit.concurrent("x", 99), revision)
    assert slots.limit == limit


@given(held(), st.integers(0, 15_000))
def test_nobody_holds_anything_exactly_when_it_says(slots: Slots, block_ms: int) -> None:
    slots.penalize(block_ms, MILLI)
    at_ms = slots.full_at_ms()
    at, before = copy_of(slots), copy_of(slots)
    at.settle(at_ms)
    assert at.available_milli() == at.limit.capacity_milli
    if at_ms > START:
        before.settle(at_ms - 1)
        assert before.holders or before.available_milli() == 0


@given(held(), st.integers(0, 8), st.integers(1, 100_000))
def test_a_penalty_keeps_who_is_in_and_a_vendors_count_changes_nothing(slots: Slots, lower: int, block_ms: int) -> None:
    before = copy_of(slots)
    ask(slots, Mode.LOWER, "", lower, START)
    assert state(slots) == state(before)
    decide(Request(Mode.PENALIZE, ("k",), (Part(0, slots.limit, 0),), block_ms=block_ms), [slots], START)
    assert slots.holders == before.holders
    assert slots.available_milli() <= 0
    assert not ask(copy_of(slots), Mode.TAKE, "new", 1, START + block_ms - 1).allowed


@given(held(), st.integers(1, 4), st.integers(1, 20), st.integers(0, 10))
def test_tokens_and_slots_are_taken_together_or_not_at_all(slots: Slots, amount: int, tokens: int, left: int) -> None:
    rate = Limit.per_minute("rpm", 10)
    bucket, before = Bucket(rate, left * MILLI, START), copy_of(slots)
    request = Request(
        Mode.TAKE,
        ("k",),
        (Part(0, rate, tokens * MILLI), Part(0, slots.limit, amount * MILLI)),
        lease_id="new",
    )
    answer = decide(request, [bucket, slots], START)
    if answer.allowed:
        assert (bucket.tokens_milli, slots.held_milli) == (
            (left - tokens) * MILLI,
            before.held_milli + amount * MILLI,
        )
        decide(refund(request), [bucket, slots], START)
    assert (bucket.tokens_milli, slots.holders) == (left * MILLI, before.holders)


@given(held())
def test_a_refused_take_and_a_look_change_nothing(slots: Slots) -> None:
    before = copy_of(slots)
    answer = ask(slots, Mode.TAKE, "new", 8, START)
    assume(not answer.allowed)
    ask(slots, Mode.PEEK, "new", 8, START)
    assert state(slots) == state(before)
    assert not slots.changed


# The queue

queue_acts = st.lists(
    st.tuples(
        st.sampled_from(["wait", "wait", "wait", "once", "give", "stop"]),
        leases,
        st.integers(1, 3),
        st.sampled_from([0, 0, 1, 40, 400, 5000]),
    ),
    max_size=40,
)


@given(st.integers(1, 4), queue_acts)
def test_every_queue_equals_a_list_of_who_waits(capacity: int, acts: list[tuple[str, str, int, int]]) -> None:
    """Whoever asks gets slots if there are enough beside those held and those that are waited for ahead."""
    place_ms, limit = 1000, Limit.concurrent("x", capacity, 10_000)
    slots, now = Slots(limit, START), START
    holds: dict[str, int] = {}
    line: list[tuple[str, int, int]] = []  # who, how many, until when
    for act, lease, amount, pause in acts:
        now += pause
        line = [place for place in line if place[2] > now]
        if act == "give" or lease in holds:
            ask(slots, Mode.FORCE, lease, -4, now)
            holds.pop(lease, None)
            line = [place for place in line if place[0] != lease]
            continue
        request = Request(
            Mode.TAKE,
            ("k",),
            (Part(0, limit, amount * MILLI),),
            lease_id=lease,
            place_ms=place_ms if act == "wait" else 0,
        )
        for holder in list(holds):  # so that none runs out
            ask(slots, Mode.RENEW, holder, 0, now)
        waiting = [who for who, _, _ in line]
        at = waiting.index(lease) if lease in waiting else len(line)
        free = capacity - sum(holds.values()) - sum(wanted for _, wanted, _ in line[:at])
        answer = decide(request, [slots], now)
        assert answer.allowed is (amount <= free)
        assert answer.levels[0][0] == (free - (amount if answer.allowed else 0)) * MILLI
        assert answer.allowed or answer.wait_ms is None or answer.wait_ms > 0
        place = (lease, amount, now + place_ms)
        if answer.allowed:
            holds[lease] = amount
        if not answer.allowed and act == "wait" and amount <= capacity:
            line[at : at + 1] = [place]
        else:
            line[at : at + 1] = []
        assert list(slots.queue.items()) == [(who, (wanted * MILLI, until)) for who, wanted, until in line]


@given(st.integers(1, 3), st.lists(st.integers(1, 3), min_size=1, max_size=6))
def test_at_the_wait_that_is_quoted_the_one_behind_dead_waiters_gets_in(held: int, wanted: list[int]) -> None:
    limit = Limit.concurrent("x", 3, 10)
    slots = Slots(limit, START)
    assert ask(slots, Mode.TAKE, "holder", held, START).allowed
    for number, amount in enumerate(wanted):
        part = (Part(0, limit, amount * MILLI),)
        decide(Request(Mode.TAKE, ("k",), part, lease_id=f"l{number}", place_ms=500 + number), [slots], START)
    wait_ms = ask(slots, Mode.TAKE, "last", 3, START).wait_ms
    assert wait_ms is not None
    assert wait_ms > 0
    assert not ask(slots, Mode.TAKE, "last", 3, START + wait_ms - 1).allowed
    assert ask(slots, Mode.TAKE, "last", 3, START + wait_ms).allowed


def test_tokens_that_would_come_too_late_keep_no_place() -> None:
    tokens, limit = Limit.per_minute("rpm", 1), Limit.concurrent("x", 1, 60)
    bucket, slots = Bucket.full(tokens, START), Slots(limit, START)
    wish = Request(Mode.TAKE, ("k",), (Part(0, tokens, MILLI), Part(0, limit, MILLI)), lease_id="a", place_ms=1000)
    assert decide(wish, [bucket, slots], START).allowed
    assert not decide(wish._replace(lease_id="b", max_wait_ms=30_000), [bucket, slots], START).allowed
    assert not slots.queue
    assert not decide(wish._replace(lease_id="b", max_wait_ms=60_000), [bucket, slots], START).allowed
    assert list(slots.queue) == ["b"]
