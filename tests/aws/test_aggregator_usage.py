"""Reading usage back: the right windows, and their sums."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from aggregator_helpers import Play, bucket_image, bucket_record

from headgate.aws.usage import Usage, summarize, usage_plan
from headgate.core.errors import ValidationError

START = datetime(2024, 1, 31, 22, tzinfo=timezone.utc)


@pytest.fixture
def used(play: Play) -> Play:
    """1.5 tokens in the first hour, 2.5 in the second, and so on, from 22:00 on the last day of a month."""
    records = []
    for n in range(6):
        if n != 3:  # an hour without use
            image = bucket_image({"rpm": 1500 + n * 1000})
            at = (START + timedelta(hours=n)).timestamp()
            records += [bucket_record(n * 2 + 1, image, at=at), bucket_record(n * 2 + 2, None, image, at=at)]
    for resource in ("api2", "api/v1", "a"):
        records.append(bucket_record(99, bucket_image({"rpm": 77000}), at=START.timestamp(), resource=resource))
    assert play.host.aggregator.process(records).failed is None
    return play


def read(play: Play, window: str, start: datetime, end: datetime, **settings: Any) -> list[Usage]:
    wanted = {"ns": "ns", "entity_id": "alice", "resource": "api", **settings}
    return play.host.run(usage_plan(play.host.deliverer, window=window, start=start, end=end, **wanted))


def hours(play: Play, first: float, last: float) -> list[float]:
    found = read(play, "hour", START + timedelta(hours=first), START + timedelta(hours=last))
    assert [one.window_start for one in found] == sorted(one.window_start for one in found)
    return [one.consumed["rpm"] for one in found]


def test_exactly_the_windows_asked_for(used: Play) -> None:
    assert hours(used, 0, 6) == [1.5, 2.5, 3.5, 5.5, 6.5]
    assert hours(used, 0, 2) == [1.5, 2.5]  # the third begins at the end: it is not in it
    assert hours(used, 0.99, 1.01) == [1.5, 2.5]  # both are touched
    assert hours(used, 1, 1.5) == [2.5]
    assert hours(used, 3, 4) == []


def test_usage_by_day_and_month_is_the_same_in_every_time_zone(used: Play) -> None:
    whole = START - timedelta(days=40), START + timedelta(days=40)
    assert [(one.window_start.day, one.consumed["rpm"], one.events) for one in read(used, "day", *whole)] == [
        (31, 4, 2),
        (1, 15.5, 3),
    ]
    assert [(one.window_start.month, one.consumed["rpm"]) for one in read(used, "month", *whole)] == [(1, 4), (2, 15.5)]
    # In another time zone it is the same moment.
    east = timezone(timedelta(hours=5))
    assert read(used, "day", whole[0].astimezone(east), whole[1].astimezone(east)) == read(used, "day", *whole)


def test_usage_of_an_entity_has_nothing_of_other_entities_or_namespaces(used: Play) -> None:
    whole = START, START + timedelta(hours=6)
    assert read(used, "hour", *whole, entity_id="bob") == []
    assert read(used, "hour", *whole, ns="other") == []
    assert [one.consumed for one in read(used, "hour", *whole, resource="api/v1")] == [{"rpm": 77}]


def test_usage_is_read_over_all_pages(used: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(params: dict[str, Any], **_: Any) -> None:
        params["Limit"] = 2

    used.host._transport._client.meta.events.register("provide-client-params.dynamodb.Query", small)
    assert hours(used, 0, 6) == [1.5, 2.5, 3.5, 5.5, 6.5]


def test_summary_is_total_average_and_peak_of_the_range(used: Play) -> None:
    whole = START, START + timedelta(hours=6)
    found = summarize(read(used, "hour", *whole), "hour", *whole)
    assert found["rpm"].as_dict() == {
        "total": 19.5,
        "average": 3.25,  # over six hours, one of them without use
        "peak": 6.5,
        "peak_start": "2024-02-01T03:00:00+00:00",
    }
    assert summarize([], "hour", *whole) == {}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"window": "hourly"}, "hour, day, month"),
        ({"start": START.replace(tzinfo=None)}, "start must be a datetime with a time zone"),
        ({"end": "tomorrow"}, "end must be a datetime"),
        ({"end": START}, "start must be before end"),
        ({"start": datetime(1969, 1, 1, tzinfo=timezone.utc)}, "from 1970 on"),
        ({"entity_id": "a#b"}, "'a#b' is not allowed"),
        ({"resource": ""}, "resource '' is not allowed"),
    ],
)
def test_bad_ranges_of_usage_are_refused_with_the_reason(play: Play, change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        read(play, **{"window": "hour", "start": START, "end": START + timedelta(hours=1), **change})
