-- The waiters for slots, in the order of their places. The lock on the row of a bucket covers the places of the same key
-- and limit. After a crash all waiters ask again.
CREATE UNLOGGED TABLE IF NOT EXISTS headgate.waiting (
  key           text   COLLATE "C" NOT NULL,
  limit_name    text   COLLATE "C" NOT NULL,
  lease_id      text   COLLATE "C" NOT NULL,
  place         bigint GENERATED ALWAYS AS IDENTITY,
  wanted_milli  bigint NOT NULL,
  expires_at_ms bigint NOT NULL,
  listener      text   NOT NULL, -- the channel to notify, or ''
  PRIMARY KEY (key, limit_name, lease_id)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);

-- A role that may use the slots may use their queue.
DO $grants$
DECLARE
  it record;
BEGIN
  FOR it IN SELECT a.privilege_type AS what, CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role
    FROM pg_class c, aclexplode(c.relacl) AS a WHERE c.oid = 'headgate.slots'::regclass
  LOOP
    EXECUTE format('GRANT %s ON headgate.waiting TO %s', it.what, it.role);
  END LOOP;
END
$grants$;

-- The place of a lease, or one after all others.
CREATE OR REPLACE FUNCTION headgate.place_of(of_key text, of_name text, lease text, settled bigint)
RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT coalesce((SELECT w.place FROM headgate.waiting w
    WHERE w.key = of_key AND w.limit_name = of_name AND w.lease_id = lease AND w.expires_at_ms > settled),
    9223372036854775807)
$$;

-- How much is wanted before a place.
CREATE OR REPLACE FUNCTION headgate.wanted_before(of_key text, of_name text, before bigint, settled bigint)
RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT coalesce(sum(w.wanted_milli), 0)::bigint FROM headgate.waiting w
  WHERE w.key = of_key AND w.limit_name = of_name AND w.place < before AND w.expires_at_ms > settled
$$;

-- Keeps the place that a lease has, else the last.
CREATE OR REPLACE FUNCTION headgate.queue_up(
  of_key text, of_name text, lease text, milli bigint, settled bigint, until_ms bigint, heard_by text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM headgate.waiting w WHERE w.key = of_key AND w.limit_name = of_name AND w.expires_at_ms <= settled;
  INSERT INTO headgate.waiting (key, limit_name, lease_id, wanted_milli, expires_at_ms, listener)
    VALUES (of_key, of_name, lease, milli, until_ms, heard_by)
    ON CONFLICT ON CONSTRAINT waiting_pkey DO UPDATE SET wanted_milli = excluded.wanted_milli,
      expires_at_ms = excluded.expires_at_ms, listener = excluded.listener;
END
$$;

-- Notifies the waiters at the head of the queue whose slots are free, so that they ask again. A listener holds a lock as
-- long as it lives (notifications.py). Without that lock the waiter is dead, and loses its place.
CREATE OR REPLACE FUNCTION headgate.wake(of_key text, of_name text, free bigint, capacity bigint, settled bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  it record;
BEGIN
  FOR it IN SELECT * FROM headgate.waiting w
    WHERE w.key = of_key AND w.limit_name = of_name AND w.expires_at_ms > settled ORDER BY w.place
  LOOP
    EXIT WHEN it.wanted_milli > free AND it.wanted_milli <= capacity;
    IF it.listener <> '' AND pg_try_advisory_xact_lock(hashtext('headgate.listener'), hashtext(it.listener)) THEN
      DELETE FROM headgate.waiting w WHERE w.key = of_key AND w.limit_name = of_name AND w.lease_id = it.lease_id;
      CONTINUE;
    ELSIF it.listener <> '' THEN
      PERFORM pg_notify(it.listener, it.lease_id);
    END IF;
    IF it.wanted_milli <= capacity THEN
      free := free - it.wanted_milli;
    END IF;
  END LOOP;
END
$$;
