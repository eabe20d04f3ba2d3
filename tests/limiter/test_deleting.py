"""Deleting an entity with more limits than fit in one write."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headgate import EntityNotFound, Limit, SyncRateLimiter, VersionConflict
from headgate.core.records import Change, Delete
from headgate.stores import open_store, register_store
from headgate.stores.contract import MAX_CHANGES, Store

LIMITS = [Limit.per_minute("rpm", 60)]


class Writes:
    """What is written to the store that it opens. `before` is called before the first deletion."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.before = lambda: None

    def open(self, url: str, timeout_seconds: float) -> Store:
        store = open_store("memory://", timeout_seconds)
        write = store.write_records

        def counted(changes: Sequence[Change], now_ms: int | None) -> None:
            if any(isinstance(change, Delete) for change in changes):
                before, self.before = self.before, lambda: None
                before()
            self.sizes.append(len(changes))
            write(changes, now_ms)

        store.write_records = counted  # type: ignore[method-assign]
        store.in_process = False
        return store


@pytest.fixture
def writes() -> Writes:
    writes = Writes()
    register_store("counted", writes.open)
    return writes


def make(limiter: SyncRateLimiter, limits: int) -> None:
    limiter.create_entity("team")
    limiter.create_entity("ann", parent_id="team")
    for n in range(limits):
        limiter.set_limits("ann", LIMITS, resource=f"r{n:03}")


@pytest.mark.parametrize("limits", [0, 1, 47, 48, 49, 96, 97, 250])
def test_everything_goes_in_as_many_writes_as_it_takes(writes: Writes, limits: int) -> None:
    with SyncRateLimiter("counted://") as limiter:
        make(limiter, limits)
        writes.sizes.clear()
        limiter.delete_entity("ann")
        assert max(writes.sizes) <= MAX_CHANGES
        assert len(writes.sizes) == (1 if limits <= 47 else 1 + -(-(limits - 47) // 49))
        assert limiter.get_children("team") == []
        assert [limiter.get_limits("ann", f"r{n:03}") for n in range(limits)] == [[]] * limits
        assert limiter.list_entities_with_custom_limits("r000") == []
        with pytest.raises(EntityNotFound):
            limiter.get_entity("ann")


def test_limits_stay_if_the_entity_has_changed(writes: Writes) -> None:
    with SyncRateLimiter("counted://") as limiter:
        make(limiter, 100)
        writes.before = lambda: limiter.update_entity("ann", name="Ann") and None
        with pytest.raises(VersionConflict, match="ann"):
            limiter.delete_entity("ann")
        assert limiter.get_entity("ann").name == "Ann"
        assert [limiter.get_limits("ann", f"r{n:03}") for n in range(100)] == [LIMITS] * 100
