"""What prefetch is measured on, by name. Whose libraries are installed is another matter."""

from __future__ import annotations

PREFETCH = 0.05
WITH, WITHOUT = f"headgate, prefetch={PREFETCH:g}", "headgate"

HOT = "prefetch, redis, 64 tasks, one key"
THREADS = "prefetch, redis, 16 threads, one key"
PROCESSES = "prefetch, sqlite, four processes, one key"
TIMED = (HOT, THREADS, PROCESSES)

PACED_REDIS = "prefetch, redis, one task, one acquire each ms"
PACED_DYNAMODB = "prefetch, dynamodb, one task, one acquire each ms"
