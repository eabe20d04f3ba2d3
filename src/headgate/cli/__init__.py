"""The `headgate` command."""

from __future__ import annotations

import sys

_EXTRA = {"click", "rich", "platformdirs"}


def main() -> None:
    try:
        from .app import run

        sys.exit(run(sys.argv[1:]))
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.exit(f"headgate: {missing}. The command needs extra packages: pip install 'headgate[cli]'")
