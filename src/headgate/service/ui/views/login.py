"""Logging in and out, and the theme of the pages."""

from __future__ import annotations

import re

from ...problems import ProblemError
from ..pages import ROOT, Answer, Redirect, Shown, Visit, page
from ..session import THEMES, session_cookie, theme_cookie

_LOCAL = re.compile(rf"{ROOT}(?:[/?][\x21-\x5b\x5d-\x7e]*)?")


@page("GET", "/login", None)
async def login_form(visit: Visit) -> Answer:
    if visit.session is not None:
        return Redirect(_next(visit.query.get("next")))
    return _form(visit.query.get("next"))


@page("POST", "/login", None)
async def login(visit: Visit) -> Answer:
    presented = visit.form.get("token")
    tokens = visit.dashboard.service.tokens
    if tokens is None:
        return Redirect(ROOT)
    token = tokens.find(presented)
    if token is None:
        visit.dashboard.service.count_refused("login", presented, visit.address)
        await visit.dashboard.logins.was_wrong(visit.address)
        return _form(visit.form.get("next"), "This token is not valid, or has expired.", 401)
    if not token.allows("read"):
        visit.dashboard.service.auth_failures.count("login", "scope", token.name)
        words = f"The token {token.name} lacks the scope read or admin, which the dashboard needs."
        return _form(visit.form.get("next"), words, 403)
    if visit.session is not None:
        visit.dashboard.sessions.close(visit.session)  # the old cookie is no longer valid
    session = visit.dashboard.sessions.open(token)
    return Redirect(_next(visit.form.get("next")), headers=[session_cookie(session, secure=visit.secure)])


@page("POST", "/logout", changes=False)
async def logout(visit: Visit) -> Answer:
    assert visit.session is not None
    visit.dashboard.sessions.close(visit.session)
    return Redirect(f"{ROOT}/login", headers=[session_cookie(None, secure=visit.secure)])


@page("POST", "/theme", None)
async def theme(visit: Visit) -> Answer:
    """For browsers without scripts."""
    chosen = visit.form.get("theme")
    if chosen not in THEMES:
        raise ProblemError(422, f"unknown theme {chosen[:40]!r}: choose from {', '.join(THEMES)}")
    return Redirect(_next(visit.form.get("next")), headers=[theme_cookie(chosen)])


def _form(after: str, problem: str = "", status: int = 200) -> Shown:
    return Shown("login.html", {"next": after, "problem": problem}, status)


def _next(path: str) -> str:
    """A page of the dashboard: a link must not lead to another site."""
    return path if _LOCAL.fullmatch(path) else ROOT
