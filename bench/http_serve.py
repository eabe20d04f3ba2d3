"""`python -m bench.http_serve NAME URL PORT`: one of the applications, served by uvicorn."""

from __future__ import annotations

import sys

import uvicorn

from .http_apps import APPS

if __name__ == "__main__":
    name, url, port = sys.argv[1:]
    # A server waits for its turn, and its connections with it.
    uvicorn.run(
        APPS[name](url),
        host="127.0.0.1",
        port=int(port),
        log_level="warning",
        access_log=False,
        timeout_keep_alive=3600,
    )
