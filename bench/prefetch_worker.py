"""A process that takes tokens of one key, as many as each line of its input says.

Usage: python -m bench.prefetch_worker URL PREFETCH
"""

from __future__ import annotations

import sys

from headgate import SyncRateLimiter

from .ours import hit_of


def main(url: str, prefetch: str) -> None:
    with SyncRateLimiter(url, prefetch=float(prefetch)) as limiter:
        hit = hit_of(limiter)
        for line in sys.stdin:
            admitted = True
            for _ in range(int(line)):
                admitted = hit()
            print("admitted" if admitted else "refused", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
