"""`python -m headgate`: the same as the command."""

from __future__ import annotations

from .cli import main

main()
