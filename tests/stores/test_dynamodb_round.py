"""A round by hand, phase by phase: what each of them knows, sends and leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from dynamodb_helpers import START_MS, available, new_table, opened, request, take_all

from headgate.core.limit import Limit
from headgate.stores.dynamodb.round import Job, Round
from local_servers.dynamodb import Engine

DAILY = Limit.per_day("daily", 3)


@pytest.fixture
def url(ministack: Engine, aws_credentials: str) -> str:
    return new_table(ministack)


@pytest.fixture
def store(url: str) -> Iterator[Any]:
    """One that knows the item."""
    with opened(url) as store:
        assert store.settle([request(DAILY, 1)], START_MS)[0].allowed
        yield store


def jobs_of(store: Any, *amounts: int) -> list[Job]:
    jobs: list[Job] = store._run(store._plans._settler._jobs_plan([request(DAILY, n) for n in amounts], START_MS))
    return jobs


def round_of(store: Any, jobs: list[Job]) -> Round:
    settler = store._plans._settler
    return Round(jobs, settler._writer, settler._namespaces)


def sent(plan: Any) -> list[str]:
    """What a phase sends, without sending it."""
    call = next(plan, None)
    return [] if call is None else [send.operation for send in call.sends]


def test_an_acquire_on_a_known_item_is_answered_by_one_round_with_one_write(store: Any) -> None:
    (job,) = jobs_of(store, 1)
    one = round_of(store, [job])
    one.believe()
    one.decide()
    assert job.applied
    assert not job.over, "only DynamoDB says that something passes"
    assert sent(one.write_plan()) == ["UpdateItem"]
    store._run(one.write_plan())
    store._run(one.learn_plan())
    assert not job.over
    one.conclude()
    assert job.answer is not None
    assert (job.answer.allowed, list(job.answer.levels)) == (True, [(1000, 0)])
    assert one.waiting == one.wide == []


def test_requests_of_a_batch_on_one_item_are_one_write(store: Any) -> None:
    jobs = jobs_of(store, 1, 1, 1)
    one = round_of(store, jobs)
    one.believe()
    one.decide()
    assert [job.applied for job in jobs] == [True, True, False]
    assert sent(one.write_plan()) == ["UpdateItem"]


def test_a_failed_condition_leads_to_a_second_round_that_decides_on_what_the_reply_said(url: str, store: Any) -> None:
    with opened(url) as other:
        assert take_all(other, DAILY) == 2
    (job,) = jobs_of(store, 1)
    first = round_of(store, [job])
    store._run(first.run_plan())
    assert not job.over
    assert first.waiting == [job]
    second = round_of(store, first.waiting)
    second.believe()
    second.decide()
    assert not job.applied
    assert sent(second.write_plan()) == [], "the failed write has told all there is to know"
    store._run(second.learn_plan())
    second.conclude()
    assert job.answer is not None
    assert not job.answer.allowed
    assert available(store, DAILY) == 0


def test_a_refusal_is_looked_up_and_writes_nothing(store: Any) -> None:
    (job,) = jobs_of(store, 3)
    one = round_of(store, [job])
    one.believe()
    one.decide()
    assert not job.applied
    assert sent(one.write_plan()) == ["GetItem"]
