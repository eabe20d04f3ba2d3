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

from .batch import Aggregator, Counts, Outcome
from .follower import Follower, Progress
from .host import Host, follow
from .pressure import Split, Splitter

__all__ = ["Aggregator", "Counts", "Follower", "Host", "Outcome", "Progress", "Split", "Splitter", "follow"]
