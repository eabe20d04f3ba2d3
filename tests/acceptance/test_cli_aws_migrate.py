"""`headgate aws migrate` as people run it, on tables that zae-limiter has made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("click")
pytest.importorskip("boto3")

from test_cli_aws import Cli

from headgate import SyncRateLimiter
from headgate.cli.app import run
from headgate.stores.dynamodb.table import TABLE
from local_servers.dynamodb import Engine

MADE = Path(__file__).parents[1] / "stores" / "zae_tables"


class Made:
    """A table with the items that a release has written."""

    def __init__(self, client: Any, release: str) -> None:
        self.client = client
        self.table = f"zae-{uuid4().hex}"
        client.create_table(TableName=self.table, **TABLE)
        for item in json.loads((MADE / f"{release}.json").read_text())["items"]:
            later = {"ttl": {"N": "4000000000"}} if "ttl" in item else {}  # the command has the clock of today
            client.put_item(TableName=self.table, Item={**item, **later})

    def tables(self) -> list[str]:
        names: list[str] = self.client.list_tables()["TableNames"]
        return names

    def items(self) -> dict[tuple[str, str], Any]:
        found = self.client.scan(TableName=self.table)["Items"]
        return {(item["PK"]["S"], item["SK"]["S"]): item for item in found}


@contextmanager
def made(engine: Engine, release: str) -> Iterator[Made]:
    client = engine.client()
    source = Made(client, release)
    yield source
    client.delete_table(TableName=source.table)
    client.close()


@pytest.fixture
def cli(ministack: Engine, aws_credentials: str, tmp_path: Path) -> Cli:
    return Cli(ministack.endpoint_url, tmp_path)


@pytest.fixture
def source(ministack: Engine, aws_credentials: str) -> Iterator[Made]:
    with made(ministack, "0.8.1") as source:
        yield source


@pytest.fixture
def named(source: Made, cli: Cli) -> tuple[str, ...]:
    return ("--name", source.table, *cli.place)


def test_a_dry_run_and_the_run_say_the_same(
    cli: Cli, source: Made, named: tuple[str, ...], ministack: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    before = source.items()
    dry = cli("migrate", *named, "--dry-run").stdout
    table = f"{source.table}-headgate"
    first = f"{source.table} (zae-limiter, schema version 0.8.0) would be migrated into {table}\n"
    assert dry.startswith(first)
    assert table not in source.tables()
    done = cli("migrate", *named).stdout
    assert done == dry.replace("would be", "was")
    assert "limits        4\n" in done
    assert done.endswith("namespaces: default\n")
    again = cli.inside("migrate", *named).stdout
    assert again.startswith(f"{table} was filled from {source.table} at ")
    assert source.items() == before
    with SyncRateLimiter(ministack.url(table)) as limiter:
        assert str(limiter.get_system_defaults()[0]) == "60/minute"
    url = ministack.url(table)
    assert run(["audit", "--entity", "proj-1", "--url", url, "--json"]) == 0
    events = json.loads(capsys.readouterr().out)["events"]
    assert [event["action"] for event in events] == ["limits.set", "entity.created"]
    source.client.delete_table(TableName=table)


def test_dry_run_as_json_reports_what_would_be_carried(cli: Cli, source: Made, named: tuple[str, ...]) -> None:
    report = json.loads(cli.inside("migrate", *named, "--dry-run", "--json", "--to-table", "elsewhere").stdout)
    assert report == {
        "source": source.table,
        "target": "elsewhere",
        "found": "zae-limiter, schema version 0.8.0",
        "namespaces": ["default"],
        "counts": {"audit": 15, "buckets": 6, "entities": 5, "limits": 4, "usage": 3},
        "notes": [],
        "problems": [],
        "finished_at_ms": 0,
    }


def test_a_table_that_cannot_be_carried_whole_is_refused_with_every_reason(cli: Cli, ministack: Engine) -> None:
    with made(ministack, "0.17.0-newer") as source:
        before = source.items()
        for dry in ([], ["--dry-run"]):
            told = cli.inside("migrate", "--name", source.table, *cli.place, *dry, code=2).stderr.splitlines()
            assert told[0] == (
                f"error: table '{source.table}' (zae-limiter, schema version 0.10.0) cannot be migrated completely, "
                "and nothing was written:"
            )
            assert len(told) == 11
            assert told[-1] == "change these, or leave them out with --force"
        assert source.items() == before
        assert f"{source.table}-headgate" not in source.tables()
        forced = cli.inside("migrate", "--name", source.table, *cli.place, "--force", "--dry-run").stdout
        assert forced.count("\nleft out, or different: ") == 9


def test_in_place_asks_for_the_name_of_the_table(cli: Cli, source: Made, named: tuple[str, ...]) -> None:
    before = source.items()
    assert "give --yes" in cli("migrate", *named, "--in-place", code=2).stderr
    seen = cli.on_a_terminal(["migrate", "--name", source.table, "--in-place"], b"no\n", code=1)
    assert "zae-limiter cannot use it afterwards" in seen
    assert "nothing was changed" in seen
    assert "migrated in place" in cli.inside("migrate", *named, "--in-place", "--dry-run").stdout
    assert source.items() == before
    answer = f"{source.table}\n".encode()
    seen = cli.on_a_terminal(["migrate", "--name", source.table, "--in-place"], answer, code=0)
    assert "was migrated in place" in seen
    assert not [pk for pk, _ in source.items() if pk == "ENTITY#key-1"]
    assert "there is nothing to do" in cli.inside("migrate", *named, "--in-place", "--yes").stdout


def test_a_table_is_not_copied_into_itself_or_under_a_name_that_is_none(
    cli: Cli, source: Made, named: tuple[str, ...]
) -> None:
    into_itself = cli.inside("migrate", *named, "--to-table", source.table, code=2).stderr
    assert "would be copied into itself: name another table, or pass in_place" in into_itself
    assert "table name 'a b' is not allowed" in cli.inside("migrate", *named, "--to-table", "a b", code=2).stderr
    both = cli.inside("migrate", *named, "--in-place", "--yes", "--to-table", "other", code=2).stderr
    assert "pass in_place or to_table 'other', not both" in both
    assert "other" not in source.tables()
