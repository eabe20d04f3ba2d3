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
            "afar",
            "audit",
            "changing_limits",
            "concurrency",
            "config",
            "each",
            "fixtures",
            "hierarchy",
            "history",
            "input",
            "leases",
            "levels",
            "lines",
            "namespaces",
            "recorded",
            "records",
            "secrets",
            "slots",
            "usage",
            "vectors",
            "vendors",
            "waiting",
            "zero",
        )
    )
)

from .acquire import AcquireConformance
from .afar import AfarConformance
from .audit import AuditConformance
from .changing_limits import ChangingLimitConformance
from .concurrency import ConcurrencyConformance
from .config import ConfigConformance
from .each import EachConformance
from .hierarchy import HierarchyConformance
from .history import HistoryConformance
from .input import InputConformance
from .leases import LeaseConformance
from .levels import LevelsConformance
from .lines import LineConformance
from .namespaces import NamespaceConformance
from .recorded import RecordedConformance
from .records import RecordConformance
from .secrets import SecretConformance
from .slots import SlotConformance
from .usage import UsageConformance
from .vectors import VectorConformance
from .vendors import VendorConformance
from .waiting import WaitingConformance
from .zero import ZeroConformance


class StoreConformance(
    VectorConformance,
    AcquireConformance,
    ChangingLimitConformance,
    ZeroConformance,
    LeaseConformance,
    WaitingConformance,
    SlotConformance,
    LineConformance,
    RecordedConformance,
    AfarConformance,
    EachConformance,
    VendorConformance,
    HierarchyConformance,
    ConfigConformance,
    LevelsConformance,
    ConcurrencyConformance,
    InputConformance,
    RecordConformance,
    UsageConformance,
    AuditConformance,
    NamespaceConformance,
    SecretConformance,
    HistoryConformance,
):
    """All of it. Subclass it and give it a `url` fixture."""


__all__ = ["StoreConformance"]
