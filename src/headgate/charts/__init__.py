"""Pictures of numbers over time, as SVG, with nothing but the standard library."""

from .moments import Moments, moments_of
from .time_chart import Kind, Series, TimeChart, largest

__all__ = ["Kind", "Moments", "Series", "TimeChart", "largest", "moments_of"]
