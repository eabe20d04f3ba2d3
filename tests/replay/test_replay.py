"""A replay decides as the limiter does, and counts what it decided."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Limit, Schedule, ValidationError
from headgate.core.bucket import Bucket
from headgate.declare import Declaration, DeclaredEntity, DeclaredLimits
from headgate.replay import LogError, LoggedRequest, RequestLogFile, Traffic, picture, replay, write_traffic

START = 1_700_000_000_000
RPM, TPM = Limit.per_minute("rpm", 3), Limit.per_minute("tpm", 1000, burst=1500)
SLOTS = Limit.concurrent("parallel", 1)

requests = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 2000), st.just(0), st.integers(0, 10**6), st.integers(0, 10**10)),
        st.sampled_from("abc"),
        st.integers(1, 2000),
        st.sampled_from([None, True, False]),
    ),
    max_size=60,
)


def limited(**limits: Limit) -> Declaration:
    return Declaration(system=limits)


@given(requests)
@settings(deadline=None)
def test_who_would_have_been_refused(made: list[tuple[int, str, int, bool | None]]) -> None:
    """Each entity has its two buckets, and a request takes from both or from none."""
    buckets: dict[str, list[Bucket]] = {}
    log, now_ms = [], START
    refused: Counter[str] = Counter()
    newly: Counter[bool] = Counter()
    for step_ms, entity_id, tokens, was_allowed in made:
        now_ms += step_ms
        log.append(LoggedRequest(now_ms, entity_id, "r", {"rpm": 1, "tpm": tokens}, was_allowed))
        of = buckets.setdefault(entity_id, [Bucket.full(RPM, now_ms), Bucket.full(TPM, now_ms)])
        for bucket in of:
            bucket.settle(now_ms)
        passes = of[0].wait_ms(1000) == 0 and of[1].wait_ms(tokens * 1000) == 0
        if passes:
            of[0].take(1000)
            of[1].take(tokens * 1000)
        refused[entity_id] += not passes
        if was_allowed is not None and was_allowed is not passes:
            newly[passes] += 1
    report = replay(limited(rpm=RPM, tpm=TPM), log)
    assert {entity.entity_id: entity.refused for entity in report.entities} == dict(refused)
    assert report.requests == len(made) == sum(one.allowed + one.refused for one in report.moments)
    assert report.refused == refused.total() == sum(one.refused for one in report.moments)
    assert (report.newly_refused, report.newly_allowed) == (newly[False], newly[True])
    assert len(report.moments) <= 241
    starts = [one.start.timestamp() for one in report.moments]
    assert all(later - earlier == report.step_seconds for earlier, later in pairwise(starts))
    ElementTree.fromstring(picture(report))


def asked(seconds: float, entity_id: str = "e", resource: str = "r", **consume: Any) -> LoggedRequest:
    return LoggedRequest(START + round(seconds * 1000), entity_id, resource, consume or {"rpm": 1}, None, "log", 7)


def test_what_is_told_of_an_entity() -> None:
    log = [asked(0), asked(1), asked(2), asked(3), asked(5), asked(30), asked(31, tpm=2000, rpm=1)]
    report = replay(limited(rpm=RPM, tpm=TPM), [*log, asked(40, "quiet")])
    loud, quiet = report.entities
    assert (loud.entity_id, loud.requests, loud.refused, loud.never) == ("e", 7, 3, True)
    assert loud.first_refused == datetime.fromtimestamp(START / 1000 + 3, timezone.utc)
    assert loud.longest_wait_seconds == 17.0
    assert loud.because_of == {"rpm": 3, "tpm": 1}
    assert (quiet.refused, quiet.first_refused, quiet.because_of) == (0, None, {})
    assert report.refused_share == 3 / 8
    assert report.as_dict(top=1)["entities"] == [loud.as_dict()]


def test_replay_resolves_levels_and_ancestors_as_the_limiter_does() -> None:
    declaration = Declaration(
        namespace="tried",
        system={"rpm": RPM},
        resources={"bulk": {"rpm": Limit.per_minute("rpm", 1)}},
        entities={
            "org": DeclaredEntity(limits={None: {"rpm": Limit.per_minute("rpm", 4)}}),
            "a": DeclaredEntity(parent_id="org", cascade=True),
            "b": DeclaredEntity(parent_id="org", cascade=True, limits={"r": {"rpm": Limit.per_minute("rpm", 2)}}),
        },
    )
    log = [asked(0, who) for who in "aaabbb"] + [asked(0, "c", "bulk"), asked(0, "c", "bulk")]
    found = {entity.entity_id: (entity.refused, entity.because_of) for entity in replay(declaration, log).entities}
    assert found == {"a": (0, {}), "b": (2, {"rpm of org": 2}), "c": (1, {"rpm": 1})}


def test_what_has_no_limit_passes() -> None:
    declaration = Declaration(resources={"r": {"rpm": RPM, "parallel": SLOTS}})
    log = [asked(0, rpm=1, usd=5, parallel=1), asked(0, parallel=1), asked(0, usd=7), asked(0, resource="other")]
    report = replay(declaration, log * 3)
    assert (report.requests, report.refused, report.unlimited) == (12, 0, 9)
    assert replay(declaration, log * 4).because_of == {"rpm": 1}


@pytest.mark.parametrize(
    ("request_made", "why"),
    [
        (asked(0, rpm=-1), "amount of 'rpm' must be from 0 to"),
        (asked(0, rpm="1"), "amount of 'rpm' must be a number"),
        (asked(0, "bad id!"), "entity_id 'bad id!' is not allowed"),
        (asked(0, resource="#"), "resource '#' is not allowed"),
    ],
)
def test_requests_that_cannot_be_made(request_made: LoggedRequest, why: str) -> None:
    with pytest.raises(LogError, match=f"log:7: {why}"):
        replay(limited(rpm=RPM), [request_made])
    report = replay(limited(rpm=RPM), [request_made, asked(1)], skip_bad=True)
    assert (report.requests, report.bad) == (1, 1)
    assert report.first_bad is not None
    assert why in report.first_bad


def at(*moments: str) -> list[LoggedRequest]:
    """One request each, at these times in Berlin in November."""
    made = [datetime.fromisoformat(f"2026-11-{moment}:00+01:00") for moment in moments]
    return [LoggedRequest(round(one.timestamp() * 1000), "e", "r", {"n": 1}) for one in made]


def refusals(limits: Any, log: list[LoggedRequest]) -> list[bool]:
    """One for each request."""
    so_far = [replay(Declaration(system=limits), log[:end]).refused for end in range(len(log) + 1)]
    return [after > before for before, after in pairwise(so_far)]


def test_quotas_are_replayed_by_their_calendar() -> None:
    daily = {"n": Limit.quota("n", 2, "day", tz="Europe/Berlin")}
    log = at("02T09:00", "02T10:00", "02T23:59", "03T00:00", "03T00:01", "03T00:02")
    assert refusals(daily, log) == [False, False, True, False, False, True]
    (entity,) = replay(Declaration(system=daily), log).entities
    assert entity.longest_wait_seconds == 24 * 3600 - 120
    first_use = {"n": Limit.quota("n", 2, 3 * 3600, from_first_use=True)}
    assert refusals(first_use, at("02T09:00", "02T10:00", "02T11:59", "02T12:00", "02T14:59", "02T15:00")) == [
        False, False, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("level", ["system", "resource", "entity"])
def test_schedules_are_replayed_by_the_clock_of_the_log(level: str) -> None:
    schedule = Schedule(
        [("mon-fri 08:00-18:00", [Limit.quota("n", 3, "day", tz="Europe/Berlin")]), ("sat,sun", 2)],
        otherwise=[Limit.quota("n", 1, "day", tz="Europe/Berlin")],
        tz="Europe/Berlin",
    )
    limits = DeclaredLimits({"n": schedule.otherwise[0]}, schedule=schedule)
    log = at("02T07:00", "02T07:59", "02T08:00", "02T17:59", "02T17:59", "02T18:00", "07T09:00", "07T10:00", "07T11:00")
    declaration = {
        "system": Declaration(system=limits),
        "resource": Declaration(resources={"r": limits}),
        "entity": Declaration(entities={"e": DeclaredEntity(limits={"r": limits})}),
    }[level]
    report = replay(declaration, log)
    assert (report.requests, report.refused) == (9, 4)
    assert refusals(limits, log) == [False, True, False, False, True, True, False, False, True]


def test_a_replay_tells_nobody_of_thresholds(caplog: pytest.LogCaptureFixture) -> None:
    alerting = Limit.quota("n", 2, "day", alert_at=(0.5, 1.0))
    schedule = Schedule([("sat,sun", [alerting]), ("mon", 0.5)], otherwise=[alerting])
    for limits in ({"n": alerting}, DeclaredLimits({"n": alerting}, schedule=schedule)):
        assert replay(Declaration(system=limits), at("06T09:00", "06T10:00", "06T11:00")).refused == 1
    assert not caplog.records


def test_several_logs_are_one(tmp_path: Any) -> None:
    even, odd = ([asked(2 * number + start) for number in range(10)] for start in (0, 1))
    both = replay(limited(rpm=RPM), even, odd)
    together = replay(limited(rpm=RPM), sorted([*even, *odd]))
    assert both.entities == together.entities
    assert both.moments == together.moments


def test_replay_of_no_requests_is_an_empty_report() -> None:
    report = replay(limited(rpm=RPM), [])
    assert (report.requests, report.refused_share, report.moments) == (0, 0.0, [])
    ElementTree.fromstring(picture(report))


def test_names_in_a_picture_are_only_names() -> None:
    report = replay(limited(rpm=RPM), [asked(0, "e" * 200), *[asked(0, "e" * 200)] * 9])
    drawn = picture(report, "<script>alert(1)</script> & more")
    root = ElementTree.fromstring(drawn)
    assert "<script>" not in drawn
    texts = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    assert any("7 of 10 (70.0%): rpm" in text for text in texts)
    assert not any("e" * 50 in text for text in texts)


class TestTraffic:
    def test_the_same_seed_is_the_same_traffic(self) -> None:
        first, again, other = (list(Traffic(seconds=600, seed=seed)) for seed in (1, 1, 2))
        assert first == again != other

    def test_it_is_as_asked_for(self) -> None:
        made = list(Traffic(entities=20, rate=0.5, seconds=86_400, burst=3))
        assert made == sorted(made, key=lambda request: request.at_ms)
        assert abs(len(made) / (0.5 * 86_400) - 1) < 0.1
        counts = Counter(request.entity_id for request in made)
        assert set(counts) == {f"user-{number:02}" for number in range(1, 21)}
        assert counts["user-01"] > 5 * counts["user-20"]
        by_hour = Counter(request.at_ms // 3_600_000 % 24 for request in made)
        assert by_hour[14] > 4 * by_hour[2]

    def test_generated_traffic_is_read_back_from_its_log(self, tmp_path: Any) -> None:
        traffic = Traffic(seconds=300)
        for name in ("log.jsonl", "log.jsonl.gz"):
            count = write_traffic(traffic, str(tmp_path / name))
            read = [request._replace(file="", line=0) for request in RequestLogFile(str(tmp_path / name))]
            assert read == list(traffic)
            assert count == len(read)

    @pytest.mark.parametrize(
        "wrong", [{"entities": 0}, {"rate": 0}, {"rate": float("nan")}, {"burst": 0.5}, {"swing": 2}, {"seconds": 0}]
    )
    def test_bad_settings_of_traffic_are_refused_by_name(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValidationError, match=f"{next(iter(wrong))} must be from"):
            Traffic(**wrong)


@pytest.mark.parametrize(("inherit", "refused"), [(True, {"tpm": 1}), (False, {})])
def test_levels_are_merged_as_the_limiter_does(inherit: bool, refused: dict[str, int]) -> None:
    """An entity with its own rpm has everyone's tpm, unless its level does not inherit."""
    own = DeclaredLimits({"rpm": Limit.per_minute("rpm", 100)}, inherit=inherit)
    declared = Declaration(system={"rpm": RPM, "tpm": TPM}, entities={"a": DeclaredEntity(limits={None: own})})
    log = [LoggedRequest(START + at, "a", "r", {"rpm": 1, "tpm": 800}, None) for at in range(2)]
    report = replay(declared, log)
    assert (report.requests, report.because_of) == (2, refused)
