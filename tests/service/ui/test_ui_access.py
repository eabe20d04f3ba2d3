"""Who may see and do what on the pages: logins, sessions, forms of other sites, scopes, read-only."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import httpx
import pytest
from dashboard_site import TOKENS, Site, check_headers, tokens_file
from service_process import ServeProcess, inside

from headgate import Limit, SyncRateLimiter
from headgate.service.app import ServiceApp, create_app
from headgate.service.state import Service
from headgate.service.tokens import Token, Tokens, hashed, load_tokens
from headgate.service.ui.dashboard import PAGES
from headgate.service.ui.pages import PageRoute
from headgate.service.ui.session import SESSION_SECONDS, SESSIONS_PER_TOKEN, Sessions

GUARDED = [one for one in PAGES if one.scope is not None]
CHANGING = [one for one in GUARDED if one.method == "POST"]
TOKEN = Token("ops", hashed("ops"), frozenset(["admin"]))


def place(page: PageRoute) -> str:
    return page.path.format(entity_id="nobody", name="nowhere")


def named(page: PageRoute) -> str:
    return f"{page.method} {page.path}"


# Pages


def test_nothing_is_open_by_mistake() -> None:
    assert {one.path for one in PAGES if one.scope is None} == {"/ui/login", "/ui/theme"}
    assert {one.path for one in PAGES if one.method == "POST" and one.scope == "read"} == {"/ui/logout"}
    assert {one.method for one in PAGES} == {"GET", "POST"}
    for page in CHANGING:
        assert page.changes == (page.path != "/ui/logout")
    for page in GUARDED:
        assert (page.scope == "namespaces") == page.path.startswith("/ui/namespaces")


@pytest.mark.parametrize("page", GUARDED, ids=named)
def test_nobody_gets_in_without_a_session(page: PageRoute, served: ServeProcess) -> None:
    with Site(served.url) as site:
        answer = site.http.request(page.method, place(page), data={} if page.method == "POST" else None)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/ui/login")
        check_headers(answer)


@pytest.mark.parametrize("page", GUARDED, ids=named)
def test_every_page_needs_its_scope(page: PageRoute, reader: Site) -> None:
    answer = reader.http.request(page.method, place(page), data={"csrf": "wrong"} if page.method == "POST" else None)
    check_headers(answer)
    if page.scope in ("admin", "namespaces"):
        assert answer.status_code == 403
        assert f"lacks the scope {page.scope}" in answer.text
    elif page.method == "GET":
        assert answer.status_code in (200, 422)


@pytest.mark.parametrize("page", CHANGING, ids=named)
def test_a_form_must_be_from_here(page: PageRoute, boss: Site) -> None:
    """Without its secret, from another site, from nowhere, or of another kind, it changes nothing."""
    good = {"csrf": boss.csrf}
    for headers, fields, status in (
        ({}, {"csrf": ""}, 403),
        ({}, {"csrf": "wrong"}, 403),
        ({}, {"csrf": "ü"}, 403),
        ({"origin": "https://evil.example"}, good, 403),
        ({"origin": "null"}, good, 403),
        ({"origin": ""}, good, 403),
        ({"origin": f"{boss.http.base_url}.evil.example"}, good, 403),
        ({"sec-fetch-site": "cross-site"}, good, 403),
        ({"sec-fetch-site": "same-site"}, good, 403),
        ({"sec-fetch-site": "none"}, good, 403),
        ({"content-type": "text/plain"}, good, 415),
    ):
        answer = boss.http.post(place(page), data=fields, headers=headers)
        assert answer.status_code == status, (headers, answer.text)
        check_headers(answer)


@pytest.mark.parametrize("page", [one for one in PAGES if one.method == "POST"], ids=named)
def test_nothing_is_changed_by_a_link(page: PageRoute, boss: Site) -> None:
    answer = boss.http.get(place(page), params={"csrf": boss.csrf})
    assert answer.status_code in (200, 303, 404, 405, 422)
    if answer.status_code == 405:
        assert answer.headers["allow"] == "POST"


@pytest.fixture(scope="module")
def read_only(read_only_served: ServeProcess) -> Iterator[Site]:
    with Site(read_only_served.url, TOKENS["boss"]) as site:
        yield site


@pytest.mark.parametrize("page", [one for one in GUARDED if one.changes], ids=named)
def test_read_only_dashboard_refuses_every_change(page: PageRoute, read_only: Site) -> None:
    data = {"csrf": read_only.csrf} if page.method == "POST" else None
    answer = read_only.http.request(page.method, place(page), data=data)
    assert answer.status_code == 403
    assert "read-only" in answer.text
    check_headers(answer)


def test_read_only_pages_have_no_forms(read_only: Site, reader: Site) -> None:
    for site in (read_only, reader):
        for path in ("/ui", "/ui/entities", "/ui/entities/acme", "/ui/limits", "/ui/audit", "/ui/buckets"):
            main = site.get(path).text.partition("<main")[2]
            assert 'method="post"' not in main
            assert "/edit" not in main
    assert 'method="post"' not in read_only.get("/ui/namespaces").text.partition("<main")[2]


# Logins


@pytest.mark.parametrize(
    ("token", "status", "words"),
    [
        ("", 401, "not valid"),
        ("wrong", 401, "not valid"),
        (TOKENS["late"], 401, "not valid"),
        (TOKENS["decider"], 403, "lacks the scope read or admin"),
        (TOKENS["boss"] + " x", 401, "not valid"),
    ],
)
def test_failed_login_says_why_and_sets_no_cookie(token: str, status: int, words: str, served: ServeProcess) -> None:
    with Site(served.url) as site:
        answer = site.http.post("/ui/login", data={"token": token})
        assert answer.status_code == status
        assert words in answer.text
        assert "set-cookie" not in answer.headers
        check_headers(answer)


@pytest.mark.parametrize(
    "body", [b"token=%ff", b"token=\xff", b"&".join([b"token=x"] * 501), b"token=" + b"x" * 70_000]
)
def test_a_form_that_is_none(body: bytes, served: ServeProcess) -> None:
    with Site(served.url) as site:
        kind = {"content-type": "application/x-www-form-urlencoded"}
        answer = site.http.post("/ui/login", content=body, headers=kind)
        assert answer.status_code == (413 if len(body) > 65_536 else 400)
        check_headers(answer)


def test_session_cookie_is_strict_and_secure_behind_tls(served: ServeProcess) -> None:
    with Site(served.url) as site:
        plain = site.http.post("/ui/login", data={"token": TOKENS["reader"]}).headers["set-cookie"]
        forwarded = {"x-forwarded-proto": "https"}
        by_tls = site.http.post("/ui/login", data={"token": TOKENS["reader"]}, headers=forwarded).headers["set-cookie"]
    for cookie in (plain, by_tls):
        assert {"HttpOnly", "SameSite=Strict", "Path=/ui", f"Max-Age={SESSION_SECONDS}"} <= set(cookie.split("; "))
    assert "Secure" not in plain
    assert "Secure" in by_tls.split("; ")
    assert plain.split(";")[0] != by_tls.split(";")[0]


@pytest.mark.parametrize("kept", [True, False])
def test_logout_ends_the_session_for_a_kept_cookie_too(kept: bool, served: ServeProcess) -> None:
    """The session is over, also for whoever has kept the cookie."""
    with Site(served.url, TOKENS["reader"]) as site:
        cookie = site.http.cookies["headgate_session"]
        answer = site.post("/ui/logout")
        assert "Max-Age=0" in answer.headers["set-cookie"]
        if kept:
            site.http.cookies.set("headgate_session", cookie, path="/ui")
        assert site.http.get("/ui").status_code == 303


@pytest.mark.parametrize(
    ("wanted", "reached"),
    [
        ("/ui/entities/a%3Ab?window=day", "/ui/entities/a%3Ab?window=day"),
        ("/ui", "/ui"),
        ("//evil.example/ui", "/ui"),
        ("https://evil.example/ui", "/ui"),
        ("/\\evil.example", "/ui"),
        ("/ui\\..\\..\\evil", "/ui"),
        ("/ui/\r\nSet-Cookie: a=b", "/ui"),
        ("/uix", "/ui"),
        ("javascript:alert(1)", "/ui"),
    ],
)
def test_login_leads_to_pages_of_the_dashboard_only(wanted: str, reached: str, served: ServeProcess) -> None:
    with Site(served.url) as site:
        answer = site.http.post("/ui/login", data={"token": TOKENS["reader"], "next": wanted})
        assert (answer.status_code, answer.headers["location"]) == (303, reached)
        assert len(answer.headers.get_list("set-cookie")) == 1


def test_a_login_leads_back(served: ServeProcess) -> None:
    with Site(served.url) as site:
        where = site.http.get("/ui/entities/a%3Ab?window=day").headers["location"]
        page = site.get(where)
        answer = site.follow(page, "/ui/login", token=TOKENS["reader"])
        assert answer.headers["location"] == "/ui/entities/a%3Ab?window=day"


# Sessions

HERE = {"origin": "http://localhost"}


def tokens(*more: Token) -> Tokens:
    return Tokens([Token("boss", hashed(TOKENS["boss"]), frozenset(["admin"])), *more])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_ends_by_itself() -> None:
    clock = Clock()
    sessions = Sessions(lambda sha256: TOKEN, clock)
    session = sessions.open(TOKEN)
    clock.now = SESSION_SECONDS - 1
    assert sessions.get(session.session_id) == session
    clock.now += 1
    assert sessions.get(session.session_id) is None


def test_a_session_ends_with_its_token() -> None:
    known = {TOKEN.sha256: TOKEN}
    sessions = Sessions(known.get)
    session, other = sessions.open(TOKEN), sessions.open(TOKEN)
    assert sessions.get(session.session_id) == session
    known[TOKEN.sha256] = replace(TOKEN, scopes=frozenset(["read"]))  # it may do less than when the session began
    assert sessions.get(session.session_id) is None
    known.clear()
    assert sessions.get(other.session_id) is None


def test_a_token_has_only_so_many_sessions() -> None:
    sessions = Sessions(lambda sha256: TOKEN)
    opened = [sessions.open(TOKEN) for _ in range(SESSIONS_PER_TOKEN + 3)]
    alive = [sessions.get(one.session_id) is not None for one in opened]
    assert alive == [False] * 3 + [True] * SESSIONS_PER_TOKEN
    assert len({one.session_id for one in opened}) == len({one.csrf for one in opened}) == len(opened)


@pytest.mark.parametrize("change", ["removed", "expired"])
def test_a_token_that_is_gone_ends_its_sessions(change: str) -> None:
    app = create_app("memory://", tokens=tokens(TOKEN))

    async def work(client: httpx.AsyncClient) -> tuple[int, int]:
        await client.post("/ui/login", data={"token": "ops"}, headers=HERE)
        before = await client.get("/ui")
        past = replace(TOKEN, expires=datetime.now(timezone.utc) - timedelta(seconds=1))
        app.service.tokens = tokens() if change == "removed" else tokens(past)
        return before.status_code, (await client.get("/ui")).status_code

    assert inside(app, work) == (200, 303)


def test_sessions_of_two_services_are_apart(served: ServeProcess, boss: Site, read_only: Site) -> None:
    with Site(str(read_only.http.base_url)) as site:
        site.http.cookies.set("headgate_session", boss.http.cookies["headgate_session"], path="/ui")
        assert site.http.get("/ui").status_code == 303


@pytest.mark.parametrize("cookie", ["headgate_session=", "headgate_session", "\x7f;;=", "headgate_session=x" * 500])
def test_a_bad_cookie_is_no_session(cookie: str, served: ServeProcess) -> None:
    with Site(served.url) as site:
        assert site.http.get("/ui", headers={"cookie": cookie}).status_code in (303, 400)


# Without tokens


def test_without_tokens_nobody_logs_in_but_forms_are_checked() -> None:
    app = create_app("memory://")

    async def work(client: httpx.AsyncClient) -> list[int]:
        assert "Log out" not in (await client.get("/ui")).text
        csrf = app.dashboard.anybody.csrf
        form = {"entity_id": "ann"}
        sent = [
            await client.post("/ui/new", data=form, headers=HERE),
            await client.post("/ui/new", data=form | {"csrf": csrf}, headers={"origin": "http://evil.example"}),
            await client.post("/ui/new", data=form | {"csrf": csrf}),
            await client.post("/ui/new", data=form | {"csrf": csrf}, headers=HERE),
        ]
        return [one.status_code for one in sent]

    assert inside(app, work) == [403, 403, 403, 303]


def test_a_false_name_sees_no_form() -> None:
    """A site with a name for this machine could read what is on the pages, the secret of the forms too."""
    app = create_app("memory://")

    async def work(client: httpx.AsyncClient) -> tuple[int, str]:
        answer = await client.get("/ui", headers={"host": "evil.example"})
        return answer.status_code, answer.text

    status, text = inside(app, work)
    assert status == 421
    assert app.dashboard.anybody.csrf not in text
    assert 'aria-label="Main"' not in text  # as for anybody who is not logged in


def test_without_the_dashboard_there_are_no_pages() -> None:
    async def work(client: httpx.AsyncClient) -> list[int]:
        return [(await client.get(path)).status_code for path in ("/ui", "/ui/login", "/", "/healthz")]

    assert inside(create_app("memory://", dashboard=False), work) == [404, 404, 404, 200]


def test_without_the_api_there_are_only_pages() -> None:
    async def work(client: httpx.AsyncClient) -> list[int]:
        paths = ("/ui", "/v1/limits/system", "/openapi.json", "/healthz", "/readyz")
        return [(await client.get(path)).status_code for path in paths]

    assert inside(ServiceApp(Service("memory://"), api=False), work) == [200, 404, 404, 200, 200]


def test_a_namespace_sees_itself_only(served: ServeProcess, boss: Site) -> None:
    boss.post("/ui/new", entity_id="only-here", name="Only here")
    with Site(served.url, TOKENS["elsewhere"]) as other:
        assert "only-here" not in other.get("/ui/entities").text
        assert "No record" in other.get("/ui/entities/only-here").text
        assert "only-here" not in other.get("/ui/audit").text


def test_a_cursor_leads_to_no_other_namespace(tmp_path: Path) -> None:
    """One that was made by hand: the rows of `default` come before those of `elsewhere`."""
    url = f"sqlite:///{tmp_path / 'limits.db'}"
    with SyncRateLimiter(url) as limiter:
        limiter.create_entity("only-here")
        limiter.try_acquire("only-here", "api", {"rpm": 1}, [Limit.per_hour("rpm", 5)])
    elsewhere = Token("elsewhere", hashed("elsewhere"), frozenset(["admin"]), "elsewhere")

    async def work(client: httpx.AsyncClient) -> list[str]:
        await client.post("/ui/login", data={"token": "elsewhere"}, headers=HERE)
        cursor = urlsafe_b64encode(b"a").decode()
        paths = ("/ui/buckets", "/ui/entities", "/ui/audit", "/ui/limits")
        return [(await client.get(path, params={"cursor": cursor})).text for path in paths]

    for page in inside(create_app(url, tokens=tokens(elsewhere)), work):
        assert "only-here" not in page


def test_the_requests_of_a_token_are_counted() -> None:
    async def work(client: httpx.AsyncClient) -> list[int]:
        return [(await client.get("/ui")).status_code for _ in range(3)]

    assert inside(create_app("memory://", max_requests="2/hour"), work) == [200, 200, 429]


def test_files_may_be_kept(reader: Site) -> None:
    page = reader.get("/ui").text
    for name in ("dashboard.css", "dashboard.js", "icon.svg"):
        address = page.partition(f"/ui/static/{name}?v=")[2][:12]
        answer = reader.http.get(f"/ui/static/{name}?v={address}")
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert reader.http.get("/ui/static/..%2fdashboard.py").status_code == 404


def test_expired_tokens_are_no_tokens(served: ServeProcess) -> None:
    with served.client(TOKENS["late"]) as client:
        assert client.get("/v1/entities/acme").status_code == 401
    found = load_tokens(served.write("again.yaml", tokens_file()))
    late = next(token for token in found.all if token.name == "late")
    assert late.has_expired
    assert found.find(TOKENS["late"]) is None
    assert found.known(late.sha256) is None
