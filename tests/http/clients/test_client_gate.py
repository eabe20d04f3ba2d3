"""What every client does, over real sockets: take, wait or raise, correct, learn, back off."""

from __future__ import annotations

import itertools
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import httpx2
import pytest
import requests
from client_kits import DIMENSION, KITS, LIMITS, TAKES, Kit
from hypothesis import given, settings
from hypothesis import strategies as st
from stub_vendor import WAIT_SECONDS, StubVendor

from headgate import Limit, RateLimitExceeded
from headgate.testing import ManualClock

FULL = {"rpm": 0, "tpm": 0, "parallel": 0}
_numbers = itertools.count()


@pytest.fixture(params=KITS)
def kind(request: pytest.FixtureRequest) -> type[Kit]:
    return KITS[request.param]


@pytest.fixture
def kit(kind: type[Kit], url: str) -> Iterator[Kit]:
    with kind(url) as kit:
        yield kit


def stub(**does: Any) -> dict[str, Any]:
    return {"stub": does}


@pytest.mark.parametrize("does", [{}, {"gzip": True}, {"anthropic": True}], ids=str)
def test_what_was_used_is_what_is_taken(kit: Kit, vendor: StubVendor, does: dict[str, Any]) -> None:
    answer = kit.post(vendor.chat, stub(actual=37, **does))
    assert answer.status == 200
    assert answer.body["choices"][0]["message"]["content"] == "hello"
    assert kit.taken() == {"rpm": 1, "tpm": 37, "parallel": 0}
    kit.post(vendor.chat, stub(actual=730, **does))
    assert kit.taken() == {"rpm": 2, "tpm": 767, "parallel": 0}


def test_a_response_that_does_not_say_costs_the_estimate(kit: Kit, vendor: StubVendor) -> None:
    kit.post(vendor.chat, stub(actual=None))
    assert kit.taken() == {"rpm": 1, "tpm": 100, "parallel": 0}


def test_without_room_nothing_is_sent(kind: type[Kit], url: str, vendor: StubVendor) -> None:
    with kind(url, consume={"tpm": 600}, timeout=0) as kit:
        kit.post(vendor.chat, stub(actual=600))
        before = len(vendor.served)
        with pytest.raises(RateLimitExceeded) as refused:
            kit.post(vendor.chat, stub())
        assert refused.value.retry_after_seconds == 12
        assert len(vendor.served) == before
        assert kit.taken() == {"rpm": 0, "tpm": 600, "parallel": 0}


def test_a_request_waits_for_its_turn(kind: type[Kit], url: str, vendor: StubVendor) -> None:
    with kind(url, consume={"tpm": 600}, timeout=600) as kit:
        kit.post(vendor.chat, stub(actual=600))
        before, done = len(vendor.served), threading.Event()
        thread = threading.Thread(target=lambda: (kit.post(vendor.chat, stub(actual=600)), done.set()))
        thread.start()
        while kit.available()["tpm"] != -200:  # it has its reservation
            assert thread.is_alive()
        assert len(vendor.served) == before
        kit.clock.advance(12)
        thread.join(WAIT_SECONDS)
        assert done.is_set()


def test_the_vendors_count_is_believed(kit: Kit, vendor: StubVendor) -> None:
    left = {"x-ratelimit-remaining-requests": "9", "x-ratelimit-remaining-tokens": "500"}
    kit.post(vendor.chat, stub(actual=37, headers=left))
    assert kit.available() == {"rpm": 9, "tpm": 500, "parallel": 2}  # and not 500 + 63


def test_after_a_429_nobody_passes(kit: Kit, vendor: StubVendor) -> None:
    assert kit.post(vendor.chat, stub(status=429, headers={"retry-after": "20"})).status == 429
    other = kit.seen  # another client of the same store
    decision = other.try_acquire("openai", "gpt-4o", {"rpm": 1}, LIMITS)
    assert decision.retry_after_seconds == 20
    kit.clock.advance(20)
    assert other.try_acquire("openai", "gpt-4o", {"rpm": 1}, LIMITS)


def test_a_429_that_gives_no_time_is_worth_a_second(kit: Kit, vendor: StubVendor) -> None:
    kit.post(vendor.chat, stub(status=429))
    assert kit.seen.try_acquire("openai", "gpt-4o", {"rpm": 1}, LIMITS).retry_after_seconds == 1


@pytest.mark.parametrize(("status", "tokens"), [(400, 0), (404, 0), (500, 100), (503, 100)])
def test_what_a_failed_call_costs(kit: Kit, vendor: StubVendor, status: int, tokens: int) -> None:
    assert kit.post(vendor.chat, stub(status=status)).status == status
    assert kit.taken() == {"rpm": 1, "tpm": tokens, "parallel": 0}


def test_a_redirect_is_a_request_of_its_own(kit: Kit, vendor: StubVendor) -> None:
    moved = stub(status=307, headers={"location": "/moved"})
    with pytest.raises(Exception, match=r"(?i)redirects"):
        kit.post(vendor.chat, moved)
    taken = kit.taken()
    assert taken["rpm"] > 1
    assert (taken["tpm"], taken["parallel"]) == (0, 0)


@pytest.mark.parametrize("does", [{}, {"anthropic": True}], ids=["openai", "anthropic"])
def test_a_stream_stays_a_stream(
    kit: Kit, vendor: StubVendor, does: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    hold = f"stream {type(kit).__name__} {does}"
    left = {"x-ratelimit-remaining-requests": "30"}
    body = kit.stream(vendor.chat, {"stream": True, **stub(hold=hold, actual=37, headers=left, **does)})
    first = next(body.chunks)  # the vendor has not sent more
    assert not vendor.go[hold].is_set()
    assert kit.available() == {"rpm": 30, "tpm": 900, "parallel": 1}
    vendor.go[hold].set()
    text = first + body.rest()
    assert text.endswith(b'data: {"type": "message_stop"}\n\n' if does else b"data: [DONE]\n\n")
    assert kit.available() == {"rpm": 30, "tpm": 963, "parallel": 2}
    body.close()
    assert kit.available() == {"rpm": 30, "tpm": 963, "parallel": 2}
    assert not caplog.records  # a lease that is ended twice complains


def test_a_stream_that_nobody_reads_on_costs_the_estimate(
    kit: Kit, vendor: StubVendor, caplog: pytest.LogCaptureFixture
) -> None:
    hold = f"abandoned {type(kit).__name__}"
    body = kit.stream(vendor.chat, {"stream": True, **stub(hold=hold, actual=37)})
    next(body.chunks)
    body.close()
    body.close()
    vendor.go[hold].set()
    assert kit.taken() == {"rpm": 1, "tpm": 100, "parallel": 0}
    assert not caplog.records  # a lease that is ended twice complains


def test_a_request_that_never_left_costs_nothing(kit: Kit) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # not listening
        with pytest.raises(Exception, match=r"(?i)connect|refused"):
            kit.post(f"http://127.0.0.1:{closed.getsockname()[1]}/", stub())
    assert kit.taken() == FULL


def test_a_request_without_an_answer_is_kept(kit: Kit, vendor: StubVendor) -> None:
    with pytest.raises(Exception, match=r"(?i)disconnect|closed|reset|aborted"):
        kit.post(vendor.chat, stub(drop=True))
    assert kit.taken() == {"rpm": 1, "tpm": 100, "parallel": 0}
    hold = f"silent {type(kit).__name__}"
    with pytest.raises((httpx.ReadTimeout, httpx2.ReadTimeout, requests.ReadTimeout)):
        kit.post(vendor.chat, stub(hold=hold), read_timeout=0.05)
    vendor.go[hold].set()
    assert kit.taken() == {"rpm": 2, "tpm": 200, "parallel": 0}
    with pytest.raises(Exception, match=r"(?i)closed|ended prematurely|incomplete"):
        kit.post(vendor.chat, {"stream": True, **stub(cut=True)})
    assert kit.taken() == {"rpm": 3, "tpm": 300, "parallel": 0}


def test_hosts_are_compared_as_names_are(kind: type[Kit], url: str, vendor: StubVendor) -> None:
    with kind(url, {f"LocalHost:{vendor.server_port}": DIMENSION}) as kit:
        kit.post(vendor.chat.replace("127.0.0.1", "LOCALhost"), stub(actual=1))
        assert kit.taken() == {"rpm": 1, "tpm": 1, "parallel": 0}
        kit.post(vendor.chat, stub(actual=1))  # 127.0.0.1 is not on the list
        assert kit.taken() == {"rpm": 1, "tpm": 1, "parallel": 0}


def test_without_amounts_it_is_one_of_each(kind: type[Kit], url: str, vendor: StubVendor) -> None:
    with kind(url, consume=None, usage=None) as kit:
        kit.post(vendor.chat, stub(actual=37))
        assert kit.taken() == {"rpm": 1, "tpm": 1, "parallel": 0}


def test_an_odd_usage_function_does_not_lose_the_answer(
    kind: type[Kit], url: str, vendor: StubVendor, caplog: pytest.LogCaptureFixture
) -> None:
    for usage in (lambda document: 1 / 0, lambda document: {"tpm": "many"}):
        with (
            kind(url, usage=usage, consume={"tpm": 1, "parallel": 1}) as kit,
            caplog.at_level(logging.WARNING, "headgate"),
        ):
            caplog.clear()
            for _ in range(3):
                assert kit.post(vendor.chat, stub()).status == 200
                kit.stream(vendor.chat, {"stream": True}).rest()
            assert len(caplog.records) == 1
            assert kit.taken()["parallel"] == 0


def test_limits_of_other_names_are_charged_and_synced(kind: type[Kit], url: str, vendor: StubVendor) -> None:
    limits = [Limit.per_minute("calls", 60), Limit.per_minute("words", 1000)]
    names = {"requests": "calls", "tokens": "words"}
    with kind(url, limits=limits, names=names, consume={"calls": 1, "words": 100}) as kit:
        kit.post(vendor.chat, stub(actual=37, headers={"x-ratelimit-remaining-requests": "9"}))
        assert kit.seen.available("openai", "gpt-4o", limits) == {"calls": 9, "words": 963}
        kit.post(vendor.chat, stub(status=400))
        assert kit.seen.available("openai", "gpt-4o", limits) == {"calls": 8, "words": 963}


# So long a period that what is refilled meanwhile is less than a token.
DAILY = [Limit.per_day("rpm", 10_000), Limit.per_day("tpm", 100_000), Limit.concurrent("parallel", 2)]
CALLS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(sorted(KITS)),
        "estimate": st.integers(1, 300),
        "actual": st.one_of(st.none(), st.integers(1, 300)),
        "status": st.sampled_from([200, 200, 200, 400, 429, 500]),
        "stream": st.booleans(),
    }
)


def said(request: Any) -> dict[str, Any]:
    return json.loads(getattr(request, "content", None) or request.body)


@pytest.fixture(scope="module")
def kits() -> Iterator[dict[str, Kit]]:
    with ExitStack() as stack:
        options: dict[str, Any] = {
            "dimension": lambda request: said(request)["dimension"],
            "consume": lambda request: {**TAKES, "tpm": said(request)["estimate"]},
            "limits": DAILY,
            "clock": ManualClock(),
        }
        yield {name: stack.enter_context(kind("memory://clients-model", **options)) for name, kind in KITS.items()}


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(CALLS, min_size=1, max_size=8))
def test_the_bucket_is_the_model_to_the_token(
    kits: dict[str, Kit], vendor: StubVendor, calls: list[dict[str, Any]]
) -> None:
    entity_id, tokens = f"model-{next(_numbers)}", 0
    for call in calls:
        kit, status, actual = kits[call["kind"]], call["status"], call["actual"]
        does = stub(status=status, actual=actual, headers={"retry-after": "0.001"} if status == 429 else {})
        body = {"dimension": f"{entity_id}#m", "estimate": call["estimate"], "stream": call["stream"], **does}
        if call["stream"] and status == 200:
            kit.stream(vendor.chat, body).rest()
        else:
            kit.post(vendor.chat, body)
        if status == 429:
            kit.clock.advance(0.001)
        if status == 500 or (status == 200 and actual is None):
            tokens += call["estimate"]
        elif status == 200:
            tokens += actual
    left = kit.seen.available(entity_id, "m", DAILY)
    assert left == {"rpm": 10_000 - len(calls), "tpm": 100_000 - tokens, "parallel": 2}
