"""The log: one line of JSON per event, without keys, entities or values of the table."""

from __future__ import annotations

import json
import logging
import sys

logger = logging.getLogger("headgate.aws")


def log(level: int, event: str, **fields: object) -> None:
    if logger.isEnabledFor(level):
        line = {"level": logging.getLevelName(level), "event": event, **fields}
        logger.log(level, json.dumps(line, default=str))


def log_to_stdout() -> None:
    """For a Lambda: its own handler would put text before the line."""
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
