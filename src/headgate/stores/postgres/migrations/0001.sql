-- The tables. `headgate` stands for the schema, UNLOGGED is taken out unless the URL says unlogged=1.

-- One row per limit of an entity on a resource, of either kind. A row of which nothing but the key was ever written
-- (settled_at_ms = 0) is as good as none. Nothing but the key is indexed, and pages have room, so that an update
-- stays on its page and leaves nothing in the index.
CREATE UNLOGGED TABLE headgate.buckets (
  key              text   COLLATE "C" NOT NULL,
  limit_name       text   COLLATE "C" NOT NULL,
  capacity_milli   bigint NOT NULL DEFAULT 0,
  refill_milli     bigint NOT NULL DEFAULT 0, -- 0: slots; -1: a quota
  period_ms        bigint NOT NULL DEFAULT 0, -- of a quota with a calendar: below 0, tells calendars apart
  tokens_milli     bigint NOT NULL DEFAULT 0, -- of slots: what is held
  settled_at_ms    bigint NOT NULL DEFAULT 0,
  remainder        bigint NOT NULL DEFAULT 0, -- of slots: before which moment none of them run out; of a quota: its end
  blocked_until_ms bigint NOT NULL DEFAULT 0,
  revision         bigint NOT NULL DEFAULT 0,
  used_milli       bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (key, limit_name)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);

-- Whoever holds the lock on the row of a bucket may change what is here of the same key and limit.
CREATE UNLOGGED TABLE headgate.slots (
  key           text   COLLATE "C" NOT NULL,
  limit_name    text   COLLATE "C" NOT NULL,
  lease_id      text   COLLATE "C" NOT NULL,
  held_milli    bigint NOT NULL,
  expires_at_ms bigint NOT NULL,
  PRIMARY KEY (key, limit_name, lease_id)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE headgate.usage (
  key        text   COLLATE "C" NOT NULL,
  limit_name text   COLLATE "C" NOT NULL,
  hour       bigint NOT NULL,
  used_milli bigint NOT NULL,
  PRIMARY KEY (key, limit_name, hour)
);

CREATE TABLE headgate.records (
  key           text   COLLATE "C" PRIMARY KEY,
  value         text   NOT NULL,
  version       bigint NOT NULL,
  expires_at_ms bigint
);

CREATE INDEX records_expiring ON headgate.records (expires_at_ms) WHERE expires_at_ms IS NOT NULL;
