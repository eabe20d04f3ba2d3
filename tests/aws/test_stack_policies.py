"""What the policies allow: held against the requests that limiters really send, and against those they must not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from policy_helpers import Asked, allows, asked
from stack_helpers import QUICK, Site, site

from headgate import Limit, SyncRateLimiter
from headgate.aws.aggregator import Host, Split
from headgate.aws.aggregator.hot_buckets import split_plan
from headgate.core.usage import HOUR_MS
from headgate.testing.servers.process import eventually
from local_servers.dynamodb import Engine, Ministack, Proxy

LIMITS = [Limit.per_hour("rpm", 100), Limit.per_day("tpm", 10_000)]
OUTPUTS = ("AppPolicyArn", "AdminPolicyArn", "ReadOnlyPolicyArn")


class Stage:
    """A stack whose policies are for the namespace blue, another namespace, and the requests of a limiter."""

    def __init__(self, here: Site) -> None:
        self.here = here
        self.whole = self._policies()
        self.ns = here.stack.update(namespace="blue").namespace_id
        self.blue = self._policies()
        self.arn = here.stack.outputs()["TableArn"]
        with SyncRateLimiter(here.stack.url, namespace="green", store_timeout=20) as other:
            other.create_entity("acme")

    def _policies(self) -> tuple[dict[str, Any], ...]:
        return tuple(self.here.policy(output) for output in OUTPUTS)

    def sent(self, namespace: str, work: Callable[[SyncRateLimiter], Any]) -> list[Asked]:
        """All that it takes to do some work."""
        with Proxy(self.here.engine.endpoint_url) as proxy:
            with SyncRateLimiter(proxy.url(self.here.name), namespace=namespace, store_timeout=20) as limiter:
                work(limiter)
            found = [one for request in proxy.requests for one in asked(request.operation, request.body, self.arn)]
        assert found
        return found


@pytest.fixture(scope="module")
def stage(ministack: Engine, aws_credentials: str) -> Iterator[Stage]:
    with site(ministack) as here:
        here.stack.deploy(functions=False)
        yield Stage(here)


def take(limiter: SyncRateLimiter) -> None:
    """What programs do: take, give back, look, wait; and what was used is put away by the way."""
    put_away_at_once(limiter)
    with limiter.acquire("key", "llm", {"rpm": 1, "tpm": 50}, LIMITS) as lease:
        lease.adjust(tpm=7)
    limiter.try_acquire("key", "llm", {"rpm": 1}, LIMITS)
    limiter.try_acquire("key", "llm", {"rpm": 1000}, LIMITS)
    limiter.available("key", "llm", LIMITS)
    limiter.resolve_limits("key", "llm")
    limiter.get_entity("acme")
    limiter.get_buckets("key")
    limiter.penalize("key", "llm", seconds=1, limits=LIMITS)
    slots = [Limit.concurrent("parallel", 3), *LIMITS]
    with limiter.acquire(
        "key", "gpu", {"parallel": 1, "rpm": 1}, slots, record_lease=True, restore_on_expiry=True
    ) as lease:
        lease.consume(parallel=1)
        lease.renew()
        lease.adjust(rpm=1)
    assert limiter.try_acquire("key", "gpu", {"rpm": 1}, slots, on_unavailable="local")
    prefix = f"{limiter.namespace}/instance#"
    eventually(
        lambda: limiter.engine.store.list_records(prefix, None, 1, limiter.engine.clock.now_ms()), "it is counted"
    )
    limiter.reconcile()


def put_away_at_once(limiter: Any) -> None:
    """As if every hour were over."""
    hours = limiter.engine.store._plans.hours

    def notice(place: Any, row: Any, now_ms: int) -> None:
        if row.used:
            hours._due[place] = row, now_ms + HOUR_MS

    hours.notice = notice


def prepare(limiter: SyncRateLimiter) -> None:
    limiter.create_entity("acme")
    limiter.create_entity("key", parent_id="acme", cascade=True)
    limiter.set_limits("acme", LIMITS, "llm")
    limiter.set_resource_defaults("llm", LIMITS)
    limiter.set_system_defaults(LIMITS)


def look(limiter: SyncRateLimiter) -> None:
    limiter.get_entity("acme")
    limiter.get_children("acme")
    limiter.get_limits("acme", "llm")
    limiter.get_buckets("acme")
    limiter.available("key", "llm", LIMITS)
    limiter.get_usage("key")
    limiter.get_usage()
    limiter.get_audit_events("key")


def manage(limiter: SyncRateLimiter) -> None:
    limiter.register_namespace("red")
    limiter.delete_namespace("red")
    limiter.count_namespace("red")
    limiter.purge_namespace("red", confirm="red")
    limiter.list_orphans()
    limiter.list_namespaces()


def refused(policy: Any, found: list[Asked]) -> list[Asked]:
    return [one for one in found if not allows(policy, one)]


def test_programs_take_and_administrators_manage(stage: Stage) -> None:
    prepared, taken, seen = (stage.sent("blue", work) for work in (prepare, take, look))
    assert f"{stage.ns}/BUCKET#key" in {key for one in taken for key in one.keys or ()}, "an hour was put away"
    for app, admin, reader in (stage.blue, stage.whole):
        assert refused(admin, [*prepared, *taken, *seen]) == []
        assert refused(app, [*taken, *seen]) == []
        assert refused(reader, seen) == []


def test_namespaces_are_for_administrators_of_the_whole_table(stage: Stage) -> None:
    managed = stage.sent("green", manage)
    assert refused(stage.whole[1], managed) == []
    for policy in (*stage.blue, stage.whole[0], stage.whole[2]):
        assert refused(policy, managed)


def test_programs_add_audit_events_and_change_none(stage: Stage) -> None:
    for app in (stage.blue[0], stage.whole[0]):
        allowed = {
            action: allows(app, Asked(f"dynamodb:{action}", stage.arn, frozenset([f"{stage.ns}/AUDIT#key"])))
            for action in ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem")
        }
        assert allowed == {"PutItem": True, "UpdateItem": False, "DeleteItem": False, "BatchWriteItem": False}


def test_programs_change_neither_entities_nor_limits(stage: Stage) -> None:
    app = stage.blue[0]
    for work in (
        lambda limiter: limiter.create_entity("new"),
        lambda limiter: limiter.set_limits("acme", LIMITS[:1], "llm"),
        lambda limiter: limiter.set_resource_defaults("llm", LIMITS[:1]),
    ):
        found = refused(app, stage.sent("blue", work))
        assert found
        assert not any(action in ("dynamodb:GetItem", "dynamodb:Query") for action, _, _ in found)


def test_reader_policies_allow_no_write(stage: Stage) -> None:
    writes = {"Put", "Update", "Delete", "Write", "PartiQLUpdate", "PartiQLInsert", "PartiQLDelete"}
    for _, _, reader in (stage.blue, stage.whole):
        actions = [action for statement in reader["Statement"] for action in statement["Action"]]
        assert not any(word in action for action in actions for word in writes)
    assert refused(stage.blue[2], stage.sent("blue", lambda limiter: limiter.try_acquire("a", "b", {"rpm": 1}, LIMITS)))


def test_a_namespace_is_closed_to_the_policies_of_another(stage: Stage) -> None:
    greens = [one for one in stage.sent("green", look) if not all(key.startswith("_/") for key in one.keys or ())]
    assert greens
    for policy in stage.blue:
        assert refused(policy, greens) == greens
    for policy in stage.whole:
        assert refused(policy, greens) == []


def test_nothing_is_read_without_saying_which_keys(stage: Stage) -> None:
    """A condition over all keys holds when there are none."""
    for policy in stage.blue:
        for action in ("Scan", "PartiQLSelect", "Query"):
            for resource in (stage.arn, f"{stage.arn}/index/GSI4"):
                assert not allows(policy, Asked(f"dynamodb:{action}", resource))
    mixed = frozenset([f"{stage.ns}/ENTITY#a", "other-space/ENTITY#a"])
    assert not allows(stage.blue[0], Asked("dynamodb:BatchGetItem", stage.arn, mixed))
    assert allows(stage.whole[1], Asked("dynamodb:Scan", stage.arn))
    assert not allows(stage.whole[0], Asked("dynamodb:Scan", stage.arn))


def test_another_table_is_another_matter(stage: Stage) -> None:
    other = stage.arn + "-2"
    for policy in (*stage.blue, *stage.whole):
        assert not allows(policy, Asked("dynamodb:GetItem", other, frozenset([f"{stage.ns}/ENTITY#a"])))
        assert not allows(policy, Asked("dynamodb:DescribeTable", other))


# The roles of the functions


def role(here: Site, function: str) -> dict[str, Any]:
    iam = here.client("iam")
    (name,) = [one["RoleName"] for one in iam.list_roles()["Roles"] if f"{here.name}-{function}Role" in one["RoleName"]]
    return dict(iam.get_role_policy(RoleName=name, PolicyName=function.lower())["PolicyDocument"])


@pytest.mark.usefixtures("aws_credentials")
def test_the_roles_are_enough_for_what_happens_seldom(ministack: Engine) -> None:
    """A bucket is split, and what is left of it is swept; a holder of a slot and of tokens has died."""
    with site(ministack) as here, Proxy(ministack.endpoint_url) as proxy:
        ns, arn = here.stack.deploy().namespace_id, here.stack.outputs()["TableArn"]
        roles = {function: role(here, function) for function in ("Aggregator", "Reconciler")}
        with SyncRateLimiter(proxy.url(here.name), store_timeout=20) as limiter, Host(proxy.url(here.name)) as host:
            for number in range(20):
                limiter.try_acquire("acme", f"llm-{number}", {"rpm": 1}, LIMITS)
            proxy.forget()
            assert host.run(split_plan(host.deliverer, Split(f"{ns}/BUCKET#acme#llm-0#0", 1)))
            split = [one for request in proxy.requests for one in asked(request.operation, request.body, arn)]
            slots = [Limit.concurrent("parallel", 3, ttl=0.001), *LIMITS]
            recorded = {"record_lease": True, "restore_on_expiry": True, "lease_ttl": 0.001}
            assert limiter.try_acquire("acme", "gpu", {"parallel": 1, "rpm": 1}, slots, **recorded)
            proxy.forget()
            assert limiter.reconcile().restored == 1
            swept = [one for request in proxy.requests for one in asked(request.operation, request.body, arn)]
    assert {one.action for one in split} >= {"dynamodb:UpdateItem", "dynamodb:ConditionCheckItem", "dynamodb:PutItem"}
    assert refused(roles["Aggregator"], split) == []
    assert swept
    assert refused(roles["Reconciler"], swept) == []


# On an engine that asks IAM


class StrictMinistack(Ministack):
    """It refuses what no policy allows, to the functions too."""

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"AUTH": "true"}


@pytest.fixture(scope="module")
def strict(dynamodb_wanted: None) -> Iterator[Engine]:
    with StrictMinistack() as engine:
        yield engine


@pytest.mark.usefixtures("aws_credentials")
def test_the_roles_are_enough_for_the_functions_and_no_more(strict: Engine) -> None:
    with site(strict) as here:
        deployed = here.stack.deploy(QUICK)
        assert deployed.namespace_id is not None
        ns = deployed.namespace_id
        with SyncRateLimiter(deployed.url, store_timeout=20) as limiter:
            limiter.try_acquire("acme", "llm", {"rpm": 3}, LIMITS)
        eventually(lambda: len(here.usage(ns, "acme")) == 3, "the aggregator has counted, with its role")
        invoked = here.client("lambda").invoke(FunctionName=f"{here.name}-reconciler")
        with invoked["Payload"] as payload:
            assert "FunctionError" not in invoked, payload.read()

        iam = here.client("iam")
        (name,) = [one["RoleName"] for one in iam.list_roles()["Roles"] if "AggregatorRole" in one["RoleName"]]
        iam.delete_role_policy(RoleName=name, PolicyName="aggregator")
        with SyncRateLimiter(deployed.url, store_timeout=20) as limiter:
            limiter.try_acquire("other", "llm", {"rpm": 3}, LIMITS)
        eventually(lambda: "not authorized" in strict.log or "AccessDenied" in strict.log, "it may no longer")
        assert here.usage(ns, "other") == {}
