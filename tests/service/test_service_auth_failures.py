"""Tokens that are refused leave a trace: a metric, and a line in the log, which nobody can fill."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from service_process import TOKENS, ServeProcess, inside, tokens_file

from headgate.service.app import create_app
from headgate.service.tokens import DOORS, LOG_EVERY_SECONDS, REASONS, AuthFailures, Token, Tokens, hashed

GOOD, LATE, WRONG = "a-token-that-is-good", "a-token-that-is-late", "a-token-of-nobody-at-all"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def failures(text: str) -> dict[tuple[str, str], float]:
    (family,) = [one for one in text_string_to_metric_families(text) if one.name == "headgate_auth_failures"]
    return {(sample.labels["door"], sample.labels["reason"]): sample.value for sample in family.samples}


def test_each_reason_is_counted_at_its_door() -> None:
    past = datetime.now(timezone.utc) - timedelta(days=1)
    tokens = Tokens(
        [
            Token("good", hashed(GOOD), frozenset(["read"])),
            Token("late", hashed(LATE), frozenset(["admin"]), expires=past),
        ]
    )
    app = create_app("memory://", tokens=tokens)

    async def work(client: httpx.AsyncClient) -> str:
        for headers in ({}, bearer(WRONG), bearer(WRONG), bearer(LATE), {"authorization": "Basic x"}):
            assert (await client.get("/v1/limits/system", headers=headers)).status_code == 401
        assert (await client.post("/v1/acquire", headers=bearer(GOOD), json={})).status_code == 403
        for token in (WRONG, LATE, ""):
            await client.post("/ui/login", data={"token": token}, headers={"origin": "http://localhost"})
        assert app.service.authorize(None, "decide") is None
        assert app.service.authorize(WRONG, "decide") is None
        assert app.service.authorize(GOOD, "decide") is None
        return (await client.get("/metrics", headers=bearer(GOOD))).text

    expected = dict.fromkeys([(door, reason) for door in DOORS for reason in REASONS], 0.0)
    expected |= {("api", "missing"): 2, ("api", "unknown"): 2, ("api", "expired"): 1, ("api", "scope"): 1}
    expected |= {("login", "unknown"): 1, ("login", "expired"): 1, ("login", "missing"): 1}
    expected |= {("envoy", "missing"): 1, ("envoy", "unknown"): 1, ("envoy", "scope"): 1}
    assert failures(inside(app, work)) == expected


def test_without_tokens_nobody_is_refused() -> None:
    async def work(client: httpx.AsyncClient) -> str:
        await client.get("/v1/limits/system", headers=bearer(WRONG))
        return (await client.get("/metrics")).text

    assert set(failures(inside(create_app("memory://"), work)).values()) == {0}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_log_has_one_line_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refused = AuthFailures(clock)
    with caplog.at_level(logging.WARNING, "headgate"):
        for number in range(1000):
            refused.count("api", "unknown", f"192.0.2.{number % 250}")
            refused.count("api", "missing", "192.0.2.1")
        clock.now = LOG_EVERY_SECONDS
        refused.count("login", "expired", "192.0.2.7")
        refused.count("login", "expired", "192.0.2.8")
    assert [record.getMessage() for record in caplog.records] == [
        "a token was refused (api, unknown) from 192.0.2.0",
        "a token was refused (login, expired) from 192.0.2.7; 999 more since the last line",
    ]


def test_the_process_logs_who_and_no_token() -> None:
    with ServeProcess("--url", "memory://", "--tokens", "tokens.yaml") as process:
        process.write("tokens.yaml", tokens_file())
        with process.start().client(WRONG) as client:
            statuses: list[Any] = [client.get("/v1/limits/system").status_code for _ in range(50)]
        assert set(statuses) == {401}
        assert process.log.count("a token was refused (api, unknown) from 127.0.0.1") == 1
        assert WRONG not in process.log
        assert hashed(WRONG) not in process.log
        with process.client(TOKENS["read"]) as client:
            assert failures(client.get("/metrics").text)["api", "unknown"] == 50
