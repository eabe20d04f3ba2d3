"""The exact answers again, on the paths of the DynamoDB store that a lone, well-informed client does not take."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from dynamodb_helpers import new_table

from headgate.stores.dynamodb.cache import Cache
from headgate.stores.dynamodb.ledger import Ledger
from headgate.stores.dynamodb.places import ItemPlace
from headgate.stores.dynamodb.shards import Shards
from headgate.testing.conformance.history import HistoryConformance
from headgate.testing.conformance.quotas import QuotaConformance
from headgate.testing.conformance.records import RecordConformance
from headgate.testing.conformance.vectors import VectorConformance
from local_servers.dynamodb import Engine


class OnDynamoDB:
    settings: ClassVar[dict[str, Any]] = {"store_timeout": 5.0}
    histories = 4
    looks_every = 10
    scenarios_every = quota_scenarios_every = 12

    @pytest.fixture(params=["async"])  # of the plans, and not of what carries them
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def url(self, ministack: Engine, aws_credentials: str) -> str:
        return new_table(ministack)


class TestOnTheEngineOfAws(OnDynamoDB, VectorConformance, QuotaConformance, HistoryConformance, RecordConformance):
    @pytest.fixture
    def url(self, dynamodb_local: Engine, aws_credentials: str) -> str:
        return new_table(dynamodb_local)


class TestKnowingNothing(OnDynamoDB, VectorConformance, QuotaConformance, HistoryConformance):
    """Every request is the first one of its client on that bucket."""

    @pytest.fixture(autouse=True)
    def forgetful(self, monkeypatch: pytest.MonkeyPatch) -> None:
        really = Shards.ledger

        def ledger(self: Shards, first: ItemPlace, now_ms: int, **more: Any) -> Ledger:
            found = really(self, first, now_ms, **more)
            found.row = None
            return found

        monkeypatch.setattr(Shards, "ledger", ledger)


class TestKnowingWhatIsNoLongerSo(OnDynamoDB, VectorConformance, QuotaConformance, HistoryConformance):
    """Every request starts from the item as it was at first."""

    @pytest.fixture(autouse=True)
    def stubborn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first_rows: dict[ItemPlace, Any] = {}
        really = Shards.ledger
        monkeypatch.setattr(Cache, "may_look", lambda self, place: True)  # it would not learn of what others saw

        def ledger(self: Shards, first: ItemPlace, now_ms: int, **more: Any) -> Ledger:
            found = really(self, first, now_ms, **more)
            if found.row is not None:
                found.row = first_rows.setdefault(first, found.row)
            return found

        monkeypatch.setattr(Shards, "ledger", ledger)


class TestUnderFire(OnDynamoDB, VectorConformance, QuotaConformance, HistoryConformance):
    """Nobody may look: refusals are from memory, which is right as long as nobody else writes."""

    @pytest.fixture(autouse=True)
    def blindfold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Cache, "may_look", lambda self, place: False)
