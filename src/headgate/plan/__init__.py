"""Logic that talks to a store, written once for sync and async.

A *plan* is a generator. It yields calls (`calls.py`), is sent their answers, and returns its result.
Two drivers run it: `run` with blocking functions, `arun` with coroutines. An error of a call is thrown
into the plan at the `yield`, so clean-up after a failure is an ordinary `except`. A test drives a plan
by hand and plays the store itself.
"""

from .calls import (
    Call,
    CountStored,
    DeleteBuckets,
    GetRecords,
    ListBuckets,
    ListRecords,
    ListStored,
    ListUsage,
    Nap,
    Ping,
    Plan,
    Purge,
    Settle,
    SettleAll,
    SettleEach,
    SettleHere,
    Setup,
    SingleFlight,
    Sleep,
    StoreCall,
    Sweep,
    Whole,
    WriteRecords,
)
from .drivers import arun, run, to_the_end

__all__ = [
    "Call",
    "CountStored",
    "DeleteBuckets",
    "GetRecords",
    "ListBuckets",
    "ListRecords",
    "ListStored",
    "ListUsage",
    "Nap",
    "Ping",
    "Plan",
    "Purge",
    "Settle",
    "SettleAll",
    "SettleEach",
    "SettleHere",
    "Setup",
    "SingleFlight",
    "Sleep",
    "StoreCall",
    "Sweep",
    "Whole",
    "WriteRecords",
    "arun",
    "run",
    "to_the_end",
]
