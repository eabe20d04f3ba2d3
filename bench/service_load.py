"""`python -m bench.service_load PORT CONNECTIONS`: a load in a process of its own.

Each line on its input is a number of requests; it says when they are answered.
"""

from __future__ import annotations

import sys

from .http_load import HttpConnection, load
from .service_contenders import acquire

if __name__ == "__main__":
    port, count = map(int, sys.argv[1:])
    turn = load([HttpConnection(port, acquire()) for _ in range(count)])
    for line in sys.stdin:
        turn(int(line))
        print("done", flush=True)
