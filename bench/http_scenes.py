"""What is measured over HTTP and gRPC, by name. Whose libraries are installed is another matter."""

from __future__ import annotations

BARE, OURS = "FastAPI alone", "headgate middleware"
SLOWAPI, SLOWAPI_ASGI, FASTAPI_LIMITER = "slowapi decorator", "slowapi ASGI middleware", "fastapi-limiter"

CONNECTIONS = 64
ADDED, SERVED = "http, memory, one request", f"http, redis, {CONNECTIONS} connections"

SERVICE_CONNECTIONS, BATCH = 16, 100
SERVICE = f"service, memory, {SERVICE_CONNECTIONS} connections"
SINGLE, BATCHED, GRPC = "headgate HTTP, one by one", f"headgate HTTP, batches of {BATCH}", "headgate gRPC, one by one"
CONSTANT_HTTP, CONSTANT_GRPC = "a constant over HTTP", "a constant over gRPC"
LOADS, WORKERS_CPUS = 2, 5  # two workers, two loads, a store
WORKERS_CONNECTIONS = 32  # of each load
WORKERS = f"service, redis, {LOADS} x {WORKERS_CONNECTIONS} connections"
ONE_WORKER, TWO_WORKERS = "headgate HTTP, one worker", "headgate HTTP, two workers"
