"""The dashboard in a real browser: scripts and no scripts, keys, light and dark, two people at once."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import httpx
import pytest
from browsing import CONTRAST, PATIENCE_MS, somebody, violations
from dashboard_site import HOSTILE, TOKENS, Site
from playwright.sync_api import Browser, Page, expect, sync_playwright
from service_process import ServeProcess

expect.set_options(timeout=PATIENCE_MS)
PHONE = {"width": 390, "height": 844}
PATHS = [
    "/ui",
    "/ui/entities/acme%3Abot",
    "/ui/limits/edit?entity=acme:bot&resource=chat",
    "/ui/buckets",
    "/ui/audit",
    "/ui/alerts",
    "/ui/limits/edit?entity=acme&resource=gpt-4o",
    "/ui/entities",
    "/ui/new",
    "/ui/limits",
    "/ui/namespaces",
    "/ui/entities/acme%3Abot/penalize?resource=gpt-4o",
    "/ui/nowhere",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def filled(served: ServeProcess) -> ServeProcess:
    """With something on every page."""
    with served.client(TOKENS["admin"]) as api:
        api.post("/v1/entities", json={"entity_id": "acme", "name": "Acme", "metadata": {"plan": "pro"}})
        api.post("/v1/entities", json={"entity_id": "acme:bot", "parent_id": "acme", "cascade": True, "name": HOSTILE})
        api.post("/v1/entities", json={"entity_id": "somebody-with-a-long-name", "metadata": {"plan": "free"}})
        for resource in ("gpt-4o", "images%2Flarge"):
            api.put(f"/v1/limits/resources/{resource}", json={"limits": ["rpm=500/minute", "tpm=300000/minute"]})
        api.put("/v1/limits/entities/acme:bot/images%2Flarge", json={"limits": ["rpm=5/hour", "busy=3 concurrent"]})
        for resource, times in (("gpt-4o", 3), ("images/large", 6)):
            for _ in range(times):
                ask = {"entity_id": "acme:bot", "resource": resource, "consume": {"rpm": 1}}
                assert api.post("/v1/acquire", json=ask).status_code == 200
        quotas = {"usd": "5/month resets 06:30 Europe/Berlin alert 80% 100%", "msgs": "45/5h from first use"}
        api.put("/v1/limits/resources/chat", json={"limits": [f"{name}={spec}" for name, spec in quotas.items()]})
        for _ in range(5):
            ask = {"entity_id": "acme:bot", "resource": "chat", "consume": {"usd": 1, "msgs": 7}}
            assert api.post("/v1/acquire", json=ask).status_code == 200
    with Site(served.url, TOKENS["admin"]) as site:
        form = site.get("/ui/limits/edit?entity=acme:bot&resource=chat")
        hours = "mon-fri 08:00-18:00: msgs=90/5h from first use\nsat,sun: 0.5"
        sent = {"name": list(quotas), "spec": list(quotas.values()), "hours": hours, "tz": "Europe/Berlin"}
        site.follow(site.follow(form, "/ui/limits/edit", 200, **sent), "/ui/limits/edit")
    return served


@pytest.fixture
def boss_page(browser: Browser, filled: ServeProcess) -> Iterator[Page]:
    with somebody(browser, filled.url, TOKENS["boss"]) as page:
        yield page


def test_logging_in_and_out_with_the_keyboard(browser: Browser, filled: ServeProcess) -> None:
    with somebody(browser, filled.url) as page:
        page.goto("/ui/entities")
        expect(page).to_have_title("Log in · headgate")
        for token in ("wrong", TOKENS["late"]):
            page.keyboard.type(token)  # the field has the focus
            page.keyboard.press("Enter")
            expect(page.get_by_role("alert")).to_contain_text("not valid")
        page.get_by_label("Token").fill(TOKENS["boss"])
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Entities")
        page.get_by_role("button", name="Log out").press("Enter")
        expect(page.get_by_label("Token")).to_be_focused()
        page.go_back()
        page.reload()
        expect(page).to_have_title("Log in · headgate")


def test_everything_can_be_reached_with_the_keyboard(boss_page: Page) -> None:
    """Everything can be reached, nothing keeps the focus, and it is always seen where it is."""
    page = boss_page
    page.goto("/ui/entities/acme%3Abot")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("/")
    expect(page.get_by_label("Find an entity by its id")).to_be_focused()
    page.keyboard.type("ac/me")  # here it is a letter like any other
    expect(page.get_by_label("Find an entity by its id")).to_have_value("ac/me")
    page.reload()
    reached, unseen = page.evaluate(
        """async () => {
            const wanted = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), summary")]
                .filter((one) => one.checkVisibility());
            const unseen = wanted.filter((one) => {
                one.focus({ focusVisible: true });
                const style = getComputedStyle(one);
                return document.activeElement !== one || style.outlineStyle === "none";
            });
            document.activeElement.blur();
            return [wanted.length, unseen.map((one) => one.outerHTML)];
        }"""
    )
    assert unseen == []
    seen = set()
    for _ in range(reached + 2):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    assert len(seen) >= reached


def test_search_finds_an_entity_and_its_buckets(boss_page: Page) -> None:
    boss_page.goto("/ui")
    boss_page.keyboard.press("/")
    boss_page.keyboard.type("acme")
    boss_page.keyboard.press("Enter")
    boss_page.get_by_role("table").get_by_role("link", name="acme:bot").click()
    expect(boss_page.get_by_role("heading", level=1)).to_have_text("acme:bot")
    assert urlsplit(boss_page.url).path == "/ui/entities/acme%3Abot"
    expect(boss_page.get_by_role("meter", name="rpm on images/large: 0 of 5 left")).to_be_visible()
    boss_page.get_by_role("link", name="Edit limits on images/large").click()
    expect(boss_page.get_by_role("heading", level=1)).to_contain_text("acme:bot on images/large")


def test_two_people_at_the_same_limits(browser: Browser, filled: ServeProcess) -> None:
    where = f"/ui/limits/edit?entity={quote('two:people', safe='')}&resource=a%2Fb"
    with (
        somebody(browser, filled.url, TOKENS["boss"]) as first,
        somebody(browser, filled.url, TOKENS["admin"]) as second,
    ):
        for page, spec in ((first, "10/minute"), (second, "99/minute")):
            page.goto(where)
            page.get_by_label("Name of limit 1").fill("rpm")
            page.get_by_label("What limit 1 allows").fill(spec)
            page.get_by_role("button", name="Add a limit").click()
            expect(page.get_by_label("Name of limit 3")).to_be_focused()
            page.get_by_role("button", name="Preview the change").click()
            row = page.get_by_role("row", name="rpm")
            expect(row).to_contain_text("none")
            expect(row).to_contain_text(spec)
        first.get_by_role("button", name="Store these limits").click()
        expect(first.get_by_role("status")).to_contain_text("The limits are stored")
        second.get_by_role("button", name="Store these limits").click()
        expect(second.get_by_role("heading", level=1)).to_have_text("The limits have changed")
        expect(second.get_by_role("main")).to_contain_text("boss")
        expect(second.get_by_role("row", name="rpm")).to_contain_text("10/minute")
        second.get_by_role("link", name="Edit them as they are now").click()
        expect(second.get_by_label("What limit 1 allows")).to_have_value("10/minute")


def test_a_form_that_is_filled_with_what_holds(browser: Browser, filled: ServeProcess) -> None:
    """One limit is changed and the others stay inherited; one that would disappear is said before."""
    where = "/ui/limits/edit?entity=filled:in&resource=gpt-4o"
    with somebody(browser, filled.url, TOKENS["boss"]) as page:
        page.goto(where)
        expect(page.get_by_label("Name of limit 2")).to_have_value("tpm")
        expect(page.get_by_label("What limit 2 allows")).to_have_value("300000/minute")
        page.get_by_label("What limit 1 allows").fill("7/minute")
        page.get_by_label("Name of limit 3").fill("extra")
        page.get_by_label("What limit 3 allows").fill("1/day")
        page.get_by_role("button", name="Preview the change").click()
        expect(page.get_by_role("row", name="rpm")).to_contain_text("500/minute from the resource")
        expect(page.get_by_role("row", name="rpm")).to_contain_text("7/minute its own")
        expect(page.get_by_role("row", name="tpm")).to_contain_text("unchanged")
        expect(page.get_by_role("alert")).to_have_count(0)
        assert violations(page) == []
        page.get_by_role("button", name="Store these limits").click()
        page.goto(where)
        page.get_by_label("Name of limit 2").fill("")
        page.get_by_label("What limit 2 allows").fill("")
        page.get_by_role("button", name="Preview the change").click()
        expect(page.get_by_role("alert")).to_contain_text("extra will no longer apply to filled:in on gpt-4o")
        assert violations(page) == []
        page.get_by_role("button", name="Store these limits, without extra").click()
        expect(page.get_by_role("status")).to_contain_text("The limits are stored")


def test_a_quota_and_its_hours_are_edited(boss_page: Page) -> None:
    """What cannot be used is said beside its field; what can be is previewed, stored, and there again."""
    page, where = boss_page, "/ui/limits/edit?entity=quota:of&resource=hours"
    page.goto(where)
    spec, hours = page.get_by_label("What limit 1 allows"), page.get_by_label("Hours, with limits or a factor")
    page.get_by_label("Name of limit 1").fill("calls")
    for wrong, field, words in (
        ("1000/day resets Europe/Berln", spec, "unknown time zone 'Europe/Berln'"),
        ("1000/day resets 06:30 Europe/Berlin", hours, "'noon' cannot be read"),
    ):
        spec.fill(wrong)
        hours.fill("noon")
        page.get_by_role("button", name="Preview the change").click()
        expect(page.get_by_role("alert")).to_contain_text(words)
        expect(field).to_have_accessible_description(re.compile(re.escape(words)))
        assert violations(page) == []
    hours.fill("mon-fri 08:00-18:00: calls=2000/day resets 06:30 Europe/Berlin\nsat,sun: 0.5")
    page.get_by_label("Time zone of the hours").fill("Europe/Berlin")
    page.get_by_role("button", name="Preview the change").click()
    expect(page.get_by_role("row", name="calls")).to_contain_text("1,000/day resets 06:30 Europe/Berlin")
    expect(page.get_by_role("region", name="By hours")).to_contain_text("sat,sun: 0.5")
    assert violations(page) == []
    page.get_by_role("button", name="Store these limits").click()
    expect(page.get_by_role("main")).to_contain_text(re.compile("resets (today|tomorrow), .* 06:30 Europe/Berlin"))
    page.goto(where)
    expect(hours).to_have_value(re.compile("\nsat,sun: 0.5$"))


def test_dashboard_works_without_scripts(browser: Browser, filled: ServeProcess) -> None:
    """All of it works, and where numbers would move, it is said that they do not."""
    with somebody(browser, filled.url, TOKENS["boss"], java_script_enabled=False) as page:
        page.goto("/ui")
        assert "Reload it to update them" in (page.locator("noscript").text_content() or "")
        expect(page.get_by_role("button", name="Pause")).to_be_hidden()
        page.get_by_role("button", name="Dark colours").click()
        assert page.locator("html").get_attribute("data-theme") == "dark"
        page.goto("/ui/limits/edit?entity=quiet")
        page.get_by_label("Name of limit 1").fill("rpm")
        page.get_by_label("What limit 1 allows").fill("10/minute")
        page.get_by_role("button", name="Preview the change").click()
        page.get_by_role("button", name="Store these limits").click()
        expect(page.get_by_role("status")).to_contain_text("The limits are stored")


def lightness(page: Page) -> float:
    """Of the page, from 0 to 255."""
    found = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(float, found.removeprefix("rgb(").removesuffix(")").split(","))) / 3


def test_colours_follow_the_system_and_the_choice(browser: Browser, filled: ServeProcess) -> None:
    with somebody(browser, filled.url, TOKENS["reader"], color_scheme="dark") as page:
        page.goto("/ui/limits")
        assert lightness(page) < 40
        page.get_by_role("button", name="Light colours").click()
        assert lightness(page) > 220
        assert page.get_by_role("button", name="Light colours").get_attribute("aria-pressed") == "true"
        page.goto("/ui/audit")
        assert lightness(page) > 220
        page.get_by_role("button", name="System colours").click()
        assert lightness(page) < 40
        page.emulate_media(color_scheme="light")
        assert lightness(page) > 220


def test_overview_shows_new_refusals_until_it_is_paused(browser: Browser, filled: ServeProcess) -> None:
    with somebody(browser, filled.url, TOKENS["reader"]) as page, filled.client(TOKENS["admin"]) as api:
        page.goto("/ui")
        moving = page.get_by_role("region", name="Most refused")
        _refuse(api, "moving:one")
        expect(moving.get_by_role("link", name="moving:one")).to_be_visible()
        page.get_by_role("button", name="Pause").click()
        paused = page.get_by_role("button", name="Resume")
        assert paused.get_attribute("aria-pressed") == "true"
        with page.expect_response("**/ui/live"):  # what is hovered over or has the focus stays; the rest goes on
            page.mouse.move(0, 0)
            paused.click()
        assert page.locator("[aria-live=polite]").count() == 1


def _refuse(api: httpx.Client, entity_id: str) -> None:
    ask = {"entity_id": entity_id, "resource": "r", "consume": {"rpm": 1}, "limits": ["rpm=1/hour"]}
    for _ in range(50):
        api.post("/v1/acquire", json=ask)


def test_a_session_that_ended_is_noticed(browser: Browser, filled: ServeProcess) -> None:
    with somebody(browser, filled.url, TOKENS["reader"]) as page:
        page.goto("/ui")
        page.emulate_media(reduced_motion="reduce")
        assert page.evaluate("getComputedStyle(document.getElementById('live')).transitionDuration") in ("0s", "")
        page.context.clear_cookies()
        expect(page).to_have_title("Log in · headgate")


def test_read_only_dashboard_has_no_buttons(browser: Browser, read_only_served: ServeProcess) -> None:
    with somebody(browser, read_only_served.url, TOKENS["boss"]) as page:
        page.goto("/ui/limits")
        expect(page.get_by_text("read-only")).to_be_visible()
        expect(page.get_by_role("main").get_by_role("button")).to_have_count(0)
        page.goto("/ui/limits/edit")
        expect(page.get_by_role("main")).to_contain_text("read-only")


def test_buckets_with_large_numbers_fit_a_desktop(browser: Browser, filled: ServeProcess) -> None:
    desktop = {"width": 1280, "height": 900}
    place = {"entity_id": "europe:support-bot", "resource": "embeddings/large"}
    limits = ["rpm=2500/minute burst 3000", "tpm=2000000/minute burst 3000000"]
    with (
        somebody(browser, filled.url, TOKENS["reader"], viewport=desktop) as page,
        filled.client(TOKENS["admin"]) as api,
    ):
        api.put("/v1/limits/entities/europe:support-bot/embeddings%2Flarge", json={"limits": limits})
        assert api.post("/v1/acquire", json=place).json()["allowed"]
        api.post("/v1/penalize", json={**place, "seconds": 86_000})
        page.goto("/ui/buckets?resource=embeddings/large")
        expect(page.get_by_text("blocked 23 h")).to_have_count(2)
        hidden = page.locator(".scroll").evaluate("(table) => table.scrollWidth - table.clientWidth")
        assert hidden <= 0, f"{hidden} pixels of the table are out of sight"


# For everybody


def test_every_page_is_for_everybody(browser: Browser, filled: ServeProcess) -> None:
    """Names, roles, order of headings; contrast, in the light and in the dark; and none is wider than a phone."""
    with somebody(browser, filled.url, TOKENS["boss"], viewport=PHONE, color_scheme="dark") as page:
        for path in PATHS:
            page.goto(path)
            assert page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"], path
            assert page.get_by_role("main").count() == page.get_by_role("heading", level=1).count() == 1, path
            assert page.get_by_role("navigation", name="Main").count() == page.get_by_role("banner").count() == 1, path
            assert (path, violations(page)) == (path, [])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read(scheme: str, browser: Browser, filled: ServeProcess) -> None:
    with somebody(browser, filled.url, TOKENS["boss"], color_scheme=scheme) as page:
        for path in PATHS[:6]:
            page.goto(path)
            assert (path, violations(page, CONTRAST)) == (path, [])


def test_the_login_is_for_everybody(browser: Browser, filled: ServeProcess) -> None:
    with somebody(browser, filled.url) as page:
        page.goto("/ui/login")
        assert violations(page) == violations(page, CONTRAST) == []
