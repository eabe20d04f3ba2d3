"""The `headgate` command."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from .app import app
    except ImportError as missing:
        sys.exit(f"headgate: {missing}. The command needs more than the library: pip install 'headgate[cli]'")
    app()
