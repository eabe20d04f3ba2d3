"""Acquiring: the funnel that every decision goes through, chains of limits, coalescing, waiting, local fallback."""
