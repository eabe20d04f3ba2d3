"""The aggregator: it reads the stream of the table and counts what was consumed, by hour, day and month.

An acquire does not wait for it and does not pay for it. It also archives audit events that expire, and splits hot
buckets over more items, before DynamoDB throttles them.

    records.py      parsing the records of the stream                no I/O
    usage_items.py  adding them to the usage items, exactly once     a plan
    hot_buckets.py  finding hot buckets, and splitting them
    archive.py      expired audit events, to S3
    batch.py        a batch of records through all of these
    follower.py     as a process that reads the stream (stream.py)
    handlers.py     (one folder up) as a Lambda that gets the records
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
