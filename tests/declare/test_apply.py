"""Applying: what is stored becomes what is declared, whatever it was, whoever else is at it, and after a crash."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from declare_helpers import LIGHTLY, check_lists, declarations, events
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit, RateLimiter, Schedule, SyncRateLimiter, ValidationError
from headgate.declare import (
    ApplyConflict,
    Declaration,
    DeclaredEntity,
    DeclaredLimits,
    aapply,
    adiff,
    aexport,
    apply,
    diff,
    export,
    read_limits_file,
    write_limits,
)
from headgate.declare.applying import apply_plan
from headgate.http import DocumentError
from headgate.plan import WriteRecords, run
from headgate.stores import open_store
from headgate.stores.contract import MAX_CHANGES
from headgate.testing.servers.redis import RedisServer
from local_servers.postgres import PostgresServer

RPM = {"rpm": Limit.per_minute("rpm", 10)}
MORE = {"rpm": Limit.per_minute("rpm", 20)}
ACME = DeclaredEntity(name="Acme", parent_id="holding", cascade=True, metadata={"plan": "pro"}, limits={None: RPM})
WEEKENDS = Schedule(
    [("sat,sun", list(MORE.values())), ("22:00-06:00", 0.5)], otherwise=RPM.values(), tz="Europe/Berlin"
)
SMALL = Declaration(
    namespace="default",
    system=RPM,
    on_unavailable="allow",
    resources={"llm": RPM},
    entities={"acme": ACME, "holding": DeclaredEntity(limits={"llm": RPM})},
    plans={"pro": {"search": "100/minute"}},
    rules=[{"id": "search", "path": "/search"}],
)


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        with server.client() as client:
            client.flushdb()
        return server.url
    if request.param == "postgres":
        database: PostgresServer = request.getfixturevalue("postgres_server")
        for table in ("buckets", "slots", "usage", "records"):
            database.execute(f"DELETE FROM headgate.{table}")
        return database.url
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"sqlite:///{tmp_path}/limits.db"


@pytest.fixture
def limiter(url: str) -> Iterator[SyncRateLimiter]:
    with SyncRateLimiter(url, store_timeout=5.0) as limiter:
        yield limiter


def put(limiter: SyncRateLimiter, declaration: Declaration, *, prune: bool = False) -> int:
    return apply(limiter, diff(limiter, declaration, prune=prune))


def many(count: int, limits: Any = None, start: int = 0) -> Declaration:
    """More than is written at once."""
    entities = {
        f"e{at:03}": DeclaredEntity(parent_id="top", limits={None: limits or RPM}) for at in range(start, count)
    }
    return Declaration(entities={"top": DeclaredEntity(), **entities})


def named(declaration: Declaration) -> Declaration:
    return replace(declaration, namespace="default")


# What is declared is what is stored


@LIGHTLY
@given(st.lists(declarations(), min_size=2, max_size=3))
def test_applied_with_prune_is_what_was_declared(declared: list[Declaration]) -> None:
    """Whatever was there before, and it is done once only."""
    with SyncRateLimiter(f"memory://{uuid.uuid4().hex}") as limiter:
        for declaration in declared:
            told = len(events(limiter))
            found = diff(limiter, declaration, prune=True)
            assert apply(limiter, found) == len(found) == len(events(limiter)) - told
            assert export(limiter) == named(declaration)
            assert diff(limiter, export(limiter), prune=True) == []
            assert diff(limiter, declaration) == []
            check_lists(limiter, declaration)


def test_limits_by_hours_are_stored_and_exported(limiter: SyncRateLimiter) -> None:
    by_hours = DeclaredLimits(RPM, schedule=WEEKENDS)
    written = {"otherwise": "100/minute", "tz": "Europe/Berlin", "hours": [{"sat,sun": 0.5}, {"mon": "1/minute"}]}
    declaration = Declaration(
        namespace="default",
        system=by_hours,
        resources={"llm": by_hours},
        entities={"acme": replace(ACME, parent_id=None, limits={None: by_hours, "llm": by_hours})},
        plans={"pro": {"search": written}},
        rules=[{"id": "search", "limits": written}],
    )
    assert put(limiter, declaration) == 7
    assert export(limiter) == declaration
    assert diff(limiter, declaration, prune=True) == []


@LIGHTLY
@given(declarations(), declarations())
def test_applied_without_prune_nothing_is_removed(first: Declaration, second: Declaration) -> None:
    with SyncRateLimiter(f"memory://{uuid.uuid4().hex}") as limiter:
        put(limiter, first)
        try:
            put(limiter, second)
        except ValidationError:  # a cycle, together with what is there
            assert export(limiter) == named(first)
            return
        stored = export(limiter)
        assert stored.entities.keys() == first.entities.keys() | second.entities.keys()
        for entity_id, entity in stored.entities.items():
            before, after = (one.entities.get(entity_id, DeclaredEntity()) for one in (first, second))
            said = after if entity_id in second.entities else before
            assert replace(entity, limits={}) == replace(said, limits={})
            assert entity.limits == {**before.limits, **after.limits}
        assert stored.resources == {**first.resources, **second.resources}
        assert stored.system == (second.system or first.system)
        assert diff(limiter, second) == []


def test_apply_export_and_prune_agree_on_every_store(limiter: SyncRateLimiter) -> None:
    assert put(limiter, SMALL) == 8
    assert export(limiter) == SMALL
    assert put(limiter, SMALL, prune=True) == 0
    assert limiter.get_entity("acme").metadata == {"plan": "pro"}
    assert limiter.resolve_limits("acme", "web") == (list(RPM.values()), "entity_default")
    assert limiter.get_system_on_unavailable() == "allow"
    above_and_below = {"holding": replace(ACME, parent_id="acme"), "acme": DeclaredEntity(limits={"llm": MORE})}
    other = Declaration(entities=above_and_below)
    assert put(limiter, other, prune=True) == 10
    assert export(limiter) == named(other)
    assert limiter.resolve_limits("acme", "llm") == (list(MORE.values()), "entity")


def test_coroutines_apply_and_export_the_same(url: str) -> None:
    async def run() -> None:
        async with RateLimiter(url, store_timeout=5.0) as limiter:
            assert await aapply(limiter, await adiff(limiter, SMALL)) == 8
            assert await aexport(limiter) == SMALL

    asyncio.run(run())


def test_more_than_is_written_at_once(limiter: SyncRateLimiter) -> None:
    told: list[tuple[int, int]] = []
    found = diff(limiter, many(150))
    assert apply(limiter, found, progress=lambda *done: told.append(done)) == 301
    assert told == sorted(told)
    assert told[-1] == (301, 301)
    assert len(told) > 10
    assert export(limiter) == named(many(150))
    assert put(limiter, many(150, MORE)) == 150
    assert put(limiter, many(150, MORE, start=100), prune=True) == 200
    assert export(limiter) == named(many(150, MORE, start=100))
    assert put(limiter, Declaration(), prune=True) == 101
    assert export(limiter) == named(Declaration())


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_no_write_is_larger_than_a_store_takes(limiter: SyncRateLimiter) -> None:
    """Or has a record twice; and they are not much smaller either."""
    written = []

    def perform(call: Any) -> Any:
        if isinstance(call, WriteRecords):
            written.append(len(call.changes))
            assert len({change.key for change in call.changes}) == len(call.changes) <= MAX_CHANGES
        return limiter.engine.perform(call)

    names = [f"e{at:03}" for at in range(200)]
    entities = {
        name: DeclaredEntity(
            name=name if at % 3 else None,
            parent_id=names[at - 1] if at % 8 else None,
            limits=dict.fromkeys([None, "llm", "web"][: at % 4], RPM),
        )
        for at, name in enumerate(names)
    }
    only_limits = {name: DeclaredEntity(limits={None: RPM}) for name in names}
    for declaration in (Declaration(entities=entities), Declaration(entities=only_limits), Declaration()):
        run(apply_plan(limiter.engine, diff(limiter, declaration, prune=True)), perform)
        assert export(limiter) == named(declaration)
    assert sum(size > 90 for size in written) > len(written) * 0.8


def test_where_plans_and_rules_are(limiter: SyncRateLimiter, url: str) -> None:
    put(limiter, SMALL)
    store = open_store(url, 5.0)
    plans, rules = store.get_records(["default/plans", "default/rules"], None if store.own_clock else 0)
    store.close()
    assert plans is not None
    assert plans.value == {"plans": SMALL.plans}
    assert rules is not None
    assert rules.value == {"rules": SMALL.rules}


def test_every_change_is_told(limiter: SyncRateLimiter) -> None:
    put(limiter, SMALL)
    changed = replace(SMALL, system=MORE, rules=None, entities={"holding": DeclaredEntity(name="Top")})
    before = len(events(limiter))
    apply(limiter, diff(limiter, changed, prune=True), actor="ci")
    told = {(one["action"], one["entity_id"]): one for one in events(limiter)[:-before]}
    assert all(one["actor"] == "ci" for one in told.values())
    assert told.keys() == {
        ("system_defaults.set", None), ("rules.deleted", None), ("entity.updated", "holding"),
        ("limits.deleted", "holding"), ("limits.deleted", "acme"), ("entity.deleted", "acme"),
    }  # fmt: skip
    assert told["entity.updated", "holding"]["before"]["name"] is None
    assert told["entity.updated", "holding"]["after"]["name"] == "Top"
    assert told["system_defaults.set", None]["after"]["limits"] == {"rpm": "20/minute"}


def test_a_diff_that_people_read(limiter: SyncRateLimiter) -> None:
    put(limiter, SMALL)
    acme = DeclaredEntity("ACME", metadata={"plan": "free", "since": 2024}, limits={None: MORE, "llm": RPM})
    both = RPM | {"tpm": Limit.per_day("tpm", 5)}
    changed = Declaration(resources={"llm": both}, entities={"acme": acme, "holding": DeclaredEntity()}, rules=[])
    assert [str(one) for one in diff(limiter, changed, prune=True)] == [
        "~ limits of everyone on llm: +tpm 5/day",
        '~ rules: -search {"path": "/search"}',
        '~ entity acme: name "Acme" -> "ACME", metadata.plan "pro" -> "free", +metadata.since 2024, -parent holding, '
        "-cascade true",
        "~ limits of acme on every resource: rpm 10/minute -> 20/minute",
        "+ limits of acme on llm: rpm 10/minute",
        '- limits of everyone on every resource: rpm 10/minute, on_unavailable "allow"',
        "- limits of holding on llm: rpm 10/minute",
        '- plans: pro {"search": "100/minute"}',
    ]


def test_inherit_alone_is_a_change_that_people_read(limiter: SyncRateLimiter) -> None:
    put(limiter, SMALL)
    alone = replace(SMALL, system=DeclaredLimits(RPM, inherit=False), resources={"llm": DeclaredLimits(RPM)})
    assert alone != SMALL
    assert [str(one) for one in diff(limiter, alone)] == ["~ limits of everyone on every resource: +inherit false"]
    put(limiter, alone)
    assert export(limiter) == alone != SMALL
    assert not limiter.get_system_defaults().inherit
    assert [str(one) for one in diff(limiter, SMALL)] == ["~ limits of everyone on every resource: -inherit false"]
    with pytest.raises(ValidationError, match="inherit must be True or False, not 0"):
        diff(limiter, Declaration(system=DeclaredLimits(RPM, inherit=0)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [Declaration(resources={None: RPM}), Declaration(entities={None: DeclaredEntity(limits={None: RPM})})],  # type: ignore[dict-item]
)
def test_a_declaration_without_a_name_is_refused_and_is_not_for_everyone(
    limiter: SyncRateLimiter, wrong: Declaration
) -> None:
    with pytest.raises(ValidationError, match="must be a string, not None"):
        diff(limiter, wrong)


def test_what_is_removed_takes_its_buckets_with_it(limiter: SyncRateLimiter) -> None:
    put(limiter, SMALL)
    for resource in ("llm", "web"):
        assert limiter.try_acquire("acme", resource, {"rpm": 1})
    put(limiter, replace(SMALL, entities={}), prune=True)
    assert [row.entity_id for row in limiter.list_buckets()] == []


def test_limits_that_only_stand_in_another_order_are_the_same(limiter: SyncRateLimiter) -> None:
    both = RPM | {"tpm": Limit.per_day("tpm", 5)}
    put(limiter, Declaration(system=both))
    assert diff(limiter, Declaration(system=dict(reversed(both.items())))) == []


def test_hashed_ids_stay_secret(url: str) -> None:
    with SyncRateLimiter(url, hash_entity_ids=b"key", store_timeout=5.0) as limiter:
        put(limiter, SMALL)
        assert put(limiter, SMALL, prune=True) == 0
        assert limiter.get_entity("acme").name == "Acme"
        assert limiter.get_limits("holding", "llm") == list(RPM.values())
        (child,) = limiter.get_children("holding")
        assert child.name == "Acme"
        assert not {"acme", "holding"} & export(limiter).entities.keys()


# What cannot be


def refused(limiter: SyncRateLimiter, text: str, folder: Path, *, prune: bool = False) -> list[str]:
    (folder / "limits.yaml").write_text(text)
    before = export(limiter)
    with pytest.raises(DocumentError) as error:
        put(limiter, read_limits_file(folder / "limits.yaml"), prune=prune)
    assert export(limiter) == before
    return [problem.removeprefix(f"{folder}/limits.yaml:") for problem in error.value.problems]


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_parents_with_what_is_stored(limiter: SyncRateLimiter, tmp_path: Path) -> None:
    assert refused(limiter, "namespace: blue\n", tmp_path) == ["1: it is for namespace 'blue', not 'default'"]
    below = "entities:\n  a: {name: A}\n  b:\n    name: B\n    parent: nobody\n"
    assert refused(limiter, below, tmp_path) == ["5: parent 'nobody' of 'b' is neither in the file nor stored"]
    limiter.create_entity("nobody")
    assert put(limiter, read_limits_file(tmp_path / "limits.yaml")) == 2
    assert refused(limiter, below, tmp_path, prune=True) == [
        "5: parent 'nobody' of 'b' is not in the file, and would be removed"
    ]
    above = "entities:\n  nobody:\n    parent: b\n"
    assert refused(limiter, above, tmp_path) == ["3: parent 'b' of 'nobody' makes a cycle: nobody -> b -> nobody"]
    limiter.create_entity("e0")
    for at in range(1, 9):
        limiter.create_entity(f"e{at}", parent_id=f"e{at - 1}")
    deep = "entities:\n  deepest:\n    parent: e8\n"
    assert refused(limiter, deep, tmp_path) == ["3: parent 'e8' gives 'deepest' more than 8 ancestors"]
    with pytest.raises(ValidationError, match="parent 'ghost' of 'a' is neither"):
        diff(limiter, Declaration(entities={"a": DeclaredEntity(parent_id="ghost")}))
    with pytest.raises(ValidationError, match="limits must not be empty"):
        diff(limiter, Declaration(system={}))


# Others, at the same time


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        lambda limiter: limiter.update_entity("acme", name="mine"),
        lambda limiter: limiter.delete_entity("acme"),
        lambda limiter: limiter.set_limits("acme", [Limit.per_day("rpm", 1)]),
        lambda limiter: limiter.delete_limits("acme"),
        lambda limiter: limiter.set_system_defaults([Limit.per_day("rpm", 1)]),
        lambda limiter: limiter.update_entity("holding", name="mine"),  # above one who is new
    ],
)
def test_what_was_changed_since_is_left_alone(change: Any, limiter: SyncRateLimiter) -> None:
    put(limiter, SMALL)
    acme = replace(ACME, name="new", limits={None: MORE})
    new = DeclaredEntity(parent_id="holding")
    found = diff(limiter, Declaration(system=MORE, entities={"acme": acme, "new": new}))
    change(limiter)
    after = export(limiter)
    with pytest.raises(ApplyConflict, match="changed in the meantime: check the difference"):
        apply(limiter, found)
    assert export(limiter) == after
    if "acme" not in after.entities:
        return
    put(limiter, Declaration(system=MORE, entities={"acme": acme, "new": new}))
    assert export(limiter).entities["acme"] == acme


@pytest.mark.parametrize("url", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (Declaration(rules=[{"id": "other", "limits": "1/minute"}]), "the stored plans .* is for rule 'r'"),
        (Declaration(rules=[{"id": "r", "limits": {"tpm": "1/minute"}, "cost": {"tpm": 1}}]), "would limit nothing"),
        (Declaration(plans={"pro": {"other": "1/minute"}}), "the stored rules .* is for rule 'other'"),
        (Declaration(plans={"pro": "1/minute burst 2"}), "the stored rules .* plan 'pro'"),
    ],
)
def test_rules_and_plans_that_stay_go_together(limiter: SyncRateLimiter, wrong: Declaration, why: str) -> None:
    put(limiter, Declaration(rules=[{"id": "r", "limits": "5/minute", "cost": 3}], plans={"pro": {"r": "9/minute"}}))
    with pytest.raises(ValidationError, match=why):
        diff(limiter, wrong)
    if wrong.rules:
        assert put(limiter, wrong, prune=True) == 2, "then no plans are left"
    else:
        assert put(limiter, Declaration(plans={"pro": {"*": "7/minute"}})) == 1


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_one_who_has_got_a_child_since_is_not_removed(limiter: SyncRateLimiter) -> None:
    put(limiter, SMALL)
    found = diff(limiter, Declaration(), prune=True)
    limiter.create_entity("new", parent_id="acme")
    with pytest.raises(ApplyConflict, match="'new' was put below 'acme' in the meantime"):
        apply(limiter, found)
    assert limiter.get_entity("acme").name == "Acme"


def test_of_two_who_apply_at_once_one_wins(limiter: SyncRateLimiter, url: str) -> None:
    """The other one stops, and says why."""
    first, second = many(60), many(60, MORE)

    def interrupt(done: int, total: int) -> None:
        with SyncRateLimiter(url, store_timeout=5.0) as other:
            put(other, second)

    with pytest.raises(ApplyConflict, match=r"another declaration was applied by .+ in the meantime"):
        apply(limiter, diff(limiter, first), progress=interrupt)
    assert export(limiter) == named(second)
    assert put(limiter, first) == 60
    assert export(limiter) == named(first)


def test_one_who_looked_while_another_was_half_done(limiter: SyncRateLimiter) -> None:
    first, second = many(60), many(60, MORE)
    put(limiter, second)
    seen = []
    apply(limiter, diff(limiter, first), progress=lambda done, total: seen.append(diff(limiter, second)))
    assert 0 < len(seen[0]) < 60
    with pytest.raises(ApplyConflict, match="another declaration was applied"):
        apply(limiter, seen[0])
    assert export(limiter) == named(first), "not a bit of each"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_one_who_was_faster_before_anything_was_written(limiter: SyncRateLimiter) -> None:
    found = diff(limiter, many(5))
    put(limiter, Declaration(resources={"llm": RPM}))
    with pytest.raises(ApplyConflict, match="another declaration was applied"):
        apply(limiter, found)
    assert put(limiter, many(5)) == 11


# A crash

KILLED = """
import sys
from headgate import SyncRateLimiter
from headgate.declare import apply, diff, read_limits_file

with SyncRateLimiter(sys.argv[1], store_timeout=5.0) as limiter:
    found = diff(limiter, read_limits_file(sys.argv[2]), prune=True)
    apply(limiter, found, progress=lambda done, total: print(done, flush=True))
"""


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_killed_in_the_middle_it_is_gone_on_with(limiter: SyncRateLimiter, url: str, tmp_path: Path) -> None:
    put(limiter, many(300))
    declaration = many(900, MORE, start=200)
    file = tmp_path / "limits.yaml"
    file.write_text(write_limits(declaration))
    with subprocess.Popen([sys.executable, "-c", KILLED, url, str(file)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    left = diff(limiter, declaration, prune=True)
    assert 0 < len(left) < 1700
    assert apply(limiter, left) == len(left)
    assert export(limiter) == named(declaration)
