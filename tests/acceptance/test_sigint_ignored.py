"""The suite passes in the background too, where a shell without job control has SIGINT ignored."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def test_children_of_a_suite_that_ignores_sigint_can_be_interrupted() -> None:
    arguments = ["-q", "-p", "no:cacheprovider", "-k", "interrupted", str(TESTS / "test_cli_reconcile.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
