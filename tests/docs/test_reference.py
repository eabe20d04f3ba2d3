"""The reference is complete and says what the code says."""

from __future__ import annotations

import inspect
import re

import click
import pytest
from api_reference import reference
from doc_pages import DOCS

from headgate import RateLimiter
from headgate.cli.serve import serve
from headgate.service import tokens
from headgate.stores.dynamodb import url as dynamodb_url
from headgate.stores.postgres import url as postgres_url
from headgate.stores.redis import url as redis_url


def test_the_python_reference_is_up_to_date() -> None:
    hint = "make it again: python tests/docs/api_reference.py > docs/api.md"
    assert (DOCS / "api.md").read_text() == reference(), hint


@pytest.fixture(scope="module")
def settings() -> dict[str, dict[str, str]]:
    """The tables of the page, by section: what a row is about, and what it says of the rest."""
    page = (DOCS / "configuration.md").read_text()
    found: dict[str, dict[str, str]] = {}
    for title, section in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL):
        rows = found[title] = {}
        for first, rest in re.findall(r"^\| ([^|]*) \| (.*) \|$", section, re.MULTILINE):
            rows |= dict.fromkeys(re.findall(r"`([^`]+)`", first), rest)
    return found


def test_every_setting_of_the_limiter_is_there_with_its_default(settings: dict[str, dict[str, str]]) -> None:
    parameters = inspect.signature(RateLimiter).parameters
    rows = settings["The limiter"]
    assert rows.keys() == parameters.keys()
    for name, parameter in parameters.items():
        if parameter.default is not parameter.empty:
            default = repr(parameter.default).replace("'", '"')
            assert rows[name].startswith(f"`{default}`"), f"{name} is {default} unless told otherwise"


def test_every_option_of_a_url_is_there(settings: dict[str, dict[str, str]]) -> None:
    rows = settings["The store's URL"]
    of_redis = {*redis_url._OPTIONS, *redis_url._TLS_OPTIONS, *redis_url._SENTINEL_OPTIONS, "db"}
    assert {row for row in rows if "://" not in row} == {*of_redis, *dynamodb_url._OPTIONS, *postgres_url._OWN}
    schemes = {row.partition("://")[0] for row in rows if "://" in row}
    assert schemes == {"memory", "sqlite", "dynamodb", "postgres", "postgresql", *redis_url.SCHEMES}


def test_every_option_of_the_service_is_there_with_its_default(settings: dict[str, dict[str, str]]) -> None:
    rows = settings["The service"]
    options = {option.opts[0]: option for option in serve.params if isinstance(option, click.Option)}
    assert {row for row in rows if row.startswith("--")} == options.keys() - {"--json"}
    for name, option in options.items():
        if option.show_default and not option.is_flag and name != "--namespace":
            assert f"`{option.default}`" in rows[name].split(" | ")[0], f"{name} is {option.default}"
    assert set(tokens._FIELDS) <= rows.keys()
