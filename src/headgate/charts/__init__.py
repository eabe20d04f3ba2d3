"""Charts of numbers over time, as SVG, with the standard library alone."""

from .time_chart import Kind, Moments, Series, TimeChart, largest, moments_of

__all__ = ["Kind", "Moments", "Series", "TimeChart", "largest", "moments_of"]
