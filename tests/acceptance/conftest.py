"""The command line, for the tests here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cli_helpers import Cli, Inside


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    pytest.importorskip("click")
    from cli_helpers import Cli

    return Cli(tmp_path)


@pytest.fixture
def inside(tmp_path: Path) -> Inside:
    pytest.importorskip("click")
    from cli_helpers import Inside

    return Inside(tmp_path)
