"""The suite, over every store."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from headgate.testing.conformance import StoreConformance


class TestMemory(StoreConformance):
    @pytest.fixture
    def url(self) -> str:
        return f"memory://{uuid.uuid4().hex}"


class TestSqlite(StoreConformance):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/headgate.db"
