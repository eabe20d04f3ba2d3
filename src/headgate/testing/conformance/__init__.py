"""The suite every store must pass. Needs `pip install 'headgate[testing]'`.

    from headgate.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def url(self, tmp_path):
            return f"mystore://{tmp_path}/fresh"     # a store of its own, empty, for each test

Everything in it runs through both limiters, with a clock that stands still unless it is told to move.
"""

import pytest

# Before the modules are imported, so that their failures show the values.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "acquire",
            "detached_leases",
            "audit",
            "changing_limits",
            "concurrency",
            "config",
            "batch",
            "fixtures",
            "hierarchy",
            "history",
            "input",
            "leases",
            "levels",
            "slot_queue",
            "namespaces",
            "prefetch",
            "quotas",
            "recorded_leases",
            "records",
            "hashed_ids",
            "schedules",
            "slots",
            "usage",
            "vectors",
            "vendors",
            "waiting",
            "zero_amounts",
        )
    )
)

from .acquire import AcquireConformance
from .audit import AuditConformance
from .batch import BatchConformance
from .changing_limits import ChangingLimitConformance
from .concurrency import ConcurrencyConformance
from .config import ConfigConformance
from .detached_leases import DetachedLeaseConformance
from .hashed_ids import HashedIdConformance
from .hierarchy import HierarchyConformance
from .history import HistoryConformance
from .input import InputConformance
from .leases import LeaseConformance
from .levels import LevelsConformance
from .namespaces import NamespaceConformance
from .prefetch import PrefetchConformance
from .quotas import QuotaConformance
from .recorded_leases import RecordedLeaseConformance
from .records import RecordConformance
from .schedules import ScheduleConformance
from .slot_queue import SlotQueueConformance
from .slots import SlotConformance
from .usage import UsageConformance
from .vectors import VectorConformance
from .vendors import VendorConformance
from .waiting import WaitingConformance
from .zero_amounts import ZeroAmountConformance


class StoreConformance(
    VectorConformance,
    QuotaConformance,
    ScheduleConformance,
    AcquireConformance,
    ChangingLimitConformance,
    ZeroAmountConformance,
    LeaseConformance,
    WaitingConformance,
    SlotConformance,
    SlotQueueConformance,
    RecordedLeaseConformance,
    DetachedLeaseConformance,
    BatchConformance,
    VendorConformance,
    HierarchyConformance,
    ConfigConformance,
    LevelsConformance,
    ConcurrencyConformance,
    PrefetchConformance,
    InputConformance,
    RecordConformance,
    UsageConformance,
    AuditConformance,
    NamespaceConformance,
    HashedIdConformance,
    HistoryConformance,
):
    """All of it. Subclass it and give it a `url` fixture."""


__all__ = ["StoreConformance"]
