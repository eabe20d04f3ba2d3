"""Logging in, also behind proxies: who is slowed down, which cookies are secure, what becomes of the old session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from dashboard_site import TOKENS, Site
from service_process import ServeProcess, inside

from headgate import RateLimiter
from headgate.service.app import ServiceApp, create_app
from headgate.service.tokens import Token, Tokens, hashed
from headgate.service.ui.session import Logins
from headgate.testing import ManualClock

HERE = {"origin": "http://localhost"}
PROXY = "127.0.0.1"  # what httpx says that it is


def site(**settings: Any) -> ServiceApp:
    tokens = Tokens([Token("boss", hashed(TOKENS["boss"]), frozenset(["admin"]))])
    app = create_app("memory://", tokens=tokens, **settings)
    assert app.dashboard is not None
    app.dashboard.logins = Logins(RateLimiter("memory://", clock=ManualClock()))
    return app


def try_logins(app: ServiceApp, attempts: Sequence[tuple[str, str | None]]) -> list[httpx.Response]:
    """Each a token, and the address that the proxy says it comes from."""

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        answers = []
        for token, address in attempts:
            forwarded = {} if address is None else {"x-forwarded-for": address}
            answers.append(await client.post("/ui/login", data={"token": token}, headers=HERE | forwarded))
            client.cookies.clear()
        return answers

    return inside(app, work)


def test_wrong_tokens_are_slowed_down_and_a_right_one_gets_in_at_once() -> None:
    attempts = [(TOKENS["boss"], None)] * 15 + [("wrong", None)] * 12 + [(TOKENS["boss"], None)]
    answers = try_logins(site(), attempts)
    found = [answer.status_code for answer in answers]
    assert found == [303] * 15 + [401] * 10 + [429] * 2 + [303]
    assert answers[-2].headers["retry-after"] == "6"  # ten a minute: when there is one again, and no later
    assert "try again in 6 s" in answers[-2].text


def test_behind_a_trusted_proxy_only_the_guesser_is_slowed_down() -> None:
    attempts = [("wrong", "192.0.2.1")] * 12 + [("wrong", "192.0.2.2"), ("wrong", "2001:db8::1")]
    found = [answer.status_code for answer in try_logins(site(proxies=[PROXY]), attempts)]
    assert found == [401] * 10 + [429] * 2 + [401] * 2


def test_nobody_else_is_believed_who_the_client_is() -> None:
    """Or a guesser would have another address each time."""
    attempts = [("wrong", f"192.0.2.{number}") for number in range(12)]
    for proxies in ([], ["10.0.0.0/8"]):
        found = [answer.status_code for answer in try_logins(site(proxies=proxies), attempts)]
        assert found == [401] * 10 + [429] * 2


def test_what_a_client_says_of_itself_to_a_trusted_proxy_is_not_believed() -> None:
    """The proxy adds its address after it."""
    attempts = [("wrong", f"203.0.113.{number}, 192.0.2.1") for number in range(12)]
    found = [answer.status_code for answer in try_logins(site(proxies=[PROXY]), attempts)]
    assert found == [401] * 10 + [429] * 2


def test_the_process_takes_the_option() -> None:
    with ServeProcess("--url", "memory://", "--tokens", "tokens.yaml", "--trusted-proxy", "127.0.0.0/8") as process:
        entry = {"name": "boss", "sha256": hashed(TOKENS["boss"]), "scopes": ["admin"]}
        process.write("tokens.yaml", str({"tokens": [entry]}))
        process.start()
        with Site(process.url) as guesser:
            found = [login(guesser, "wrong", {"x-forwarded-for": "192.0.2.1"}).status_code for _ in range(40)]
            assert found[:10] == [401] * 10
            assert 429 in found
            assert login(guesser, "wrong", {"x-forwarded-for": "192.0.2.2"}).status_code == 401
            assert login(guesser, TOKENS["boss"], {"x-forwarded-for": "192.0.2.1"}).status_code == 303
        assert "192.0.2.1" in process.log


def login(site: Site, token: str, headers: dict[str, str]) -> httpx.Response:
    return site.http.post("/ui/login", data={"token": token}, headers=headers)


@pytest.mark.parametrize(
    ("headers", "secure"),
    [
        ([], False),
        ([("x-forwarded-proto", "http")], False),
        ([("x-forwarded-proto", "https")], True),
        ([("x-forwarded-proto", "HTTPS")], True),
        ([("x-forwarded-proto", "https, http")], True),
        ([("x-forwarded-proto", "https,http")], True),
        ([("x-forwarded-proto", "http, https")], True),
        ([("x-forwarded-proto", "https"), ("x-forwarded-proto", "http")], True),
        ([("x-forwarded-proto", "http"), ("x-forwarded-proto", "https")], True),
        ([("x-forwarded-proto", "httpsx")], False),
        ([("forwarded", 'for=192.0.2.1;proto="https";by=x, for=192.0.2.2;proto=http')], True),
        ([("forwarded", "for=192.0.2.1;proto=http")], False),
        ([("forwarded", "for=192.0.2.1;xproto=https")], False),
    ],
)
def test_the_cookie_is_secure_if_there_is_tls_anywhere_on_the_way(
    headers: list[tuple[str, str]], secure: bool, served: ServeProcess
) -> None:
    with Site(served.url) as site:
        sent = [*site.http.headers.raw, *((name.encode(), value.encode()) for name, value in headers)]
        answer = httpx.post(f"{served.url}/ui/login", data={"token": TOKENS["reader"]}, headers=sent)
        assert answer.status_code == 303
        assert ("Secure" in answer.headers["set-cookie"].split("; ")) is secure


def test_a_new_login_ends_the_old_session(served: ServeProcess) -> None:
    with Site(served.url, TOKENS["reader"]) as site:
        old = site.http.cookies["headgate_session"]
        assert login(site, "wrong", {}).status_code == 401
        assert site.http.get("/ui").status_code == 200  # what fails changes nothing
        assert login(site, TOKENS["admin"], {}).status_code == 303
        new = site.http.cookies["headgate_session"]
        assert site.http.get("/ui").status_code == 200
        site.http.cookies.clear()
        site.http.cookies.set("headgate_session", old, path="/ui")
        assert site.http.get("/ui").status_code == 303
        assert new != old


def test_a_login_ends_no_session_of_another_browser(served: ServeProcess) -> None:
    with Site(served.url, TOKENS["reader"]) as one, Site(served.url, TOKENS["reader"]) as other:
        assert login(one, TOKENS["reader"], {}).status_code == 303
        assert other.http.get("/ui").status_code == 200
