"""The aggregator: it reads the stream of the table and counts what was consumed, by hour, day and month.

Nobody who acquires waits for it, and it costs them nothing. It also archives audit events that expire, and spreads
buckets that are written too often over more items, before DynamoDB throttles them.

    records.py      what a record of the stream says               nothing in or out
    usage_items.py  adding it to the usage items, exactly once     a plan
    pressure.py     what has to be split                           nothing in or out
    archive.py      expired audit events, to S3
    batch.py        a batch of records through all of these
    follower.py     as a process: reads the stream itself; stream.py, checkpoints.py
    handlers.py     (one folder up) as a Lambda: is given the records
"""

from .batch import Aggregator, BatchResult, Counts
from .follower import AggregatorProgress, Follower
from .host import Host, follow
from .hot_buckets import Split, Splitter

__all__ = [
    "Aggregator",
    "AggregatorProgress",
    "BatchResult",
    "Counts",
    "Follower",
    "Host",
    "Split",
    "Splitter",
    "follow",
]
