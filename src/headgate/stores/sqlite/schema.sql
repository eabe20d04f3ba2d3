-- Format 4. The number is kept in PRAGMA user_version, the mark that a file is ours in PRAGMA application_id.

-- One row per limit of an entity on a resource. A row that is missing is a full bucket, or a limit all of whose slots are
-- free. Of a concurrent limit refill_milli is 0, period_ms its ttl, and tokens_milli the moment at which the last of its
-- slots runs out. Of a quota refill_milli is -1, period_ms how long its window is from first use, or 0 if it has a calendar,
-- and remainder the end of its window (since format 4).
CREATE TABLE buckets (
    key TEXT NOT NULL,                  -- namespace/entity#resource
    limit_name TEXT NOT NULL,
    capacity_milli INTEGER NOT NULL,    -- the limit as it was last used
    refill_milli INTEGER NOT NULL,
    period_ms INTEGER NOT NULL,
    tokens_milli INTEGER NOT NULL,      -- the bucket (see core/bucket.py)
    settled_at_ms INTEGER NOT NULL,
    remainder INTEGER NOT NULL,
    blocked_until_ms INTEGER NOT NULL,
    revision INTEGER NOT NULL,          -- of the stored limits; 0 for a limit that came with a call
    used_milli INTEGER NOT NULL DEFAULT 0,  -- what was taken in the hour of settled_at_ms, net
    PRIMARY KEY (key, limit_name)
) WITHOUT ROWID;

CREATE TABLE records (
    key TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL,                -- JSON
    version INTEGER NOT NULL,
    expires_at_ms INTEGER
) WITHOUT ROWID;

CREATE INDEX records_expiring ON records (expires_at_ms) WHERE expires_at_ms IS NOT NULL;

-- Who holds how much of a concurrent limit until when (see core/slots.py).
CREATE TABLE slots (
    key TEXT NOT NULL,
    limit_name TEXT NOT NULL,
    lease_id TEXT NOT NULL,
    held_milli INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    PRIMARY KEY (key, limit_name, lease_id)
) WITHOUT ROWID;

CREATE INDEX slots_expiring ON slots (expires_at_ms);

-- What was used in the hours before (counted from 1970), and of buckets that are gone (see core/usage.py).
CREATE TABLE usage (
    key TEXT NOT NULL,
    limit_name TEXT NOT NULL,
    hour INTEGER NOT NULL,
    used_milli INTEGER NOT NULL,
    PRIMARY KEY (key, limit_name, hour)
) WITHOUT ROWID;
