"""Helpers for tests: a clock that stands still, and (in `headgate.testing.conformance`) the suite for stores."""

from .clock import ManualClock

__all__ = ["ManualClock"]
