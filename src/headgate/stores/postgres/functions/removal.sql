-- Forgetting. Whoever removes buckets locks them first, in the order of their keys, and puts away what they have
-- counted.

-- What a corrupt bucket has counted is left out.
CREATE OR REPLACE FUNCTION headgate.has_counted(b headgate.buckets) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT b.used_milli <> 0 AND b.used_milli BETWEEN -4000000000000000000 AND 4000000000000000000
    AND b.settled_at_ms BETWEEN 0 AND 1000000000000000
$$;

CREATE OR REPLACE FUNCTION headgate.delete_buckets(patient_ms bigint, keys text[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('lock_timeout', patient_ms::text, true);
  PERFORM 1 FROM headgate.buckets b WHERE b.key = ANY (keys) ORDER BY b.key, b.limit_name FOR UPDATE;
  PERFORM headgate.put_away(b.key, b.limit_name, b.settled_at_ms / 3600000, b.used_milli, 0, 0)
    FROM headgate.buckets b WHERE b.key = ANY (keys) AND headgate.has_counted(b);
  DELETE FROM headgate.slots s WHERE s.key = ANY (keys);
  PERFORM headgate.wake(b.key, b.limit_name, 9223372036854775807, 9223372036854775807, 0)
    FROM headgate.buckets b WHERE b.key = ANY (keys) AND b.refill_milli = 0;
  DELETE FROM headgate.buckets b WHERE b.key = ANY (keys);
  DELETE FROM headgate.waiting w WHERE w.key = ANY (keys);
END
$$;

-- One page of all buckets from `begins` to before `ends`: lets go of slots that have run out, removes what is full,
-- and old usage. Passes over what others are at. Returns how many buckets and how many leases, and where the next
-- page begins, or null.
CREATE OR REPLACE FUNCTION headgate.sweep(
  given_ms bigint, kept_ms bigint, begins text, ends text, most integer,
  OUT buckets bigint, OUT leases bigint, OUT next text
) LANGUAGE plpgsql AS $$
DECLARE
  now_ms bigint := headgate.clock(given_ms);
  page text[] := ARRAY(
    SELECT DISTINCT b.key FROM headgate.buckets b WHERE b.key >= begins AND b.key < ends ORDER BY b.key LIMIT most
  );
  freed_keys text[];
  freed_names text[];
  full_keys text[];
  full_names text[];
BEGIN
  next := CASE WHEN cardinality(page) = most THEN page[most] || ' ' END;
  WITH locked AS MATERIALIZED (
    SELECT b.key, b.limit_name FROM headgate.buckets b
    WHERE b.key = ANY (page) AND b.refill_milli = 0 AND b.settled_at_ms > 0 ORDER BY b.key, b.limit_name
    FOR UPDATE SKIP LOCKED
  ), gone AS (
    DELETE FROM headgate.slots s USING locked l
    WHERE s.key = l.key AND s.limit_name = l.limit_name AND s.expires_at_ms <= now_ms
    RETURNING s.key, s.limit_name, s.held_milli
  ), freed AS (
    SELECT g.key, g.limit_name, sum(g.held_milli) AS milli, count(*) AS leases FROM gone g GROUP BY g.key, g.limit_name
  ), updated AS (
    UPDATE headgate.buckets b
    SET tokens_milli = greatest(b.tokens_milli - f.milli, 0), settled_at_ms = greatest(b.settled_at_ms, now_ms)
    FROM freed f WHERE b.key = f.key AND b.limit_name = f.limit_name
    RETURNING f.leases, f.limit_name, f.key
  )
  SELECT coalesce(sum(u.leases) FILTER (WHERE NOT starts_with(u.limit_name, '_')), 0), array_agg(u.key),
      array_agg(u.limit_name)
    INTO leases, freed_keys, freed_names FROM updated u;
  PERFORM headgate.wake(b.key, b.limit_name, b.capacity_milli - b.tokens_milli, b.capacity_milli, now_ms)
    FROM headgate.buckets b JOIN unnest(freed_keys, freed_names) AS f (key, name) ON b.key = f.key AND b.limit_name = f.name
    WHERE b.blocked_until_ms <= now_ms;
  DELETE FROM headgate.waiting WHERE (key, limit_name, lease_id) IN (
    SELECT w.key, w.limit_name, w.lease_id FROM headgate.waiting w
    WHERE w.key = ANY (page) AND w.expires_at_ms <= now_ms FOR UPDATE SKIP LOCKED
  );

  WITH locked AS MATERIALIZED (
    SELECT * FROM headgate.buckets b WHERE b.key = ANY (page) ORDER BY b.key, b.limit_name FOR UPDATE SKIP LOCKED
  )
  SELECT array_agg(l.key), array_agg(l.limit_name) INTO full_keys, full_names FROM locked l
  WHERE l.blocked_until_ms <= now_ms AND l.settled_at_ms <= now_ms AND CASE
    WHEN l.refill_milli = 0 THEN l.tokens_milli = 0 AND NOT EXISTS (
      SELECT FROM headgate.waiting w WHERE w.key = l.key AND w.limit_name = l.limit_name AND w.expires_at_ms > now_ms)
    WHEN l.refill_milli < -1 OR (l.refill_milli > 0 AND l.period_ms <= 0) OR l.capacity_milli <= 0
      OR l.settled_at_ms < 0 OR l.tokens_milli > l.capacity_milli THEN false -- corrupt: somebody has to hear of it
    WHEN l.refill_milli < 0 THEN l.tokens_milli = l.capacity_milli OR l.remainder BETWEEN 1 AND now_ms
    ELSE l.tokens_milli + div((now_ms - l.settled_at_ms)::numeric * l.refill_milli + l.remainder, l.period_ms)
      >= l.capacity_milli END;

  PERFORM headgate.put_away(b.key, b.limit_name, b.settled_at_ms / 3600000, b.used_milli, now_ms, kept_ms)
    FROM headgate.buckets b JOIN unnest(full_keys, full_names) AS f (key, name) ON b.key = f.key AND b.limit_name = f.name
    WHERE headgate.has_counted(b);
  DELETE FROM headgate.buckets b USING unnest(full_keys, full_names) AS f (key, name)
    WHERE b.key = f.key AND b.limit_name = f.name;
  buckets := coalesce(cardinality(full_keys), 0);
END
$$;

-- One page of old usage. Where the next one begins, or null.
CREATE OR REPLACE FUNCTION headgate.sweep_usage(
  given_ms bigint, kept_ms bigint, begins text, ends text, most integer
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  now_ms bigint := headgate.clock(given_ms);
  page text[];
BEGIN
  WITH RECURSIVE found AS (
    (SELECT u.key FROM headgate.usage u WHERE u.key >= begins AND u.key < ends ORDER BY u.key LIMIT 1)
    UNION ALL
    SELECT (SELECT u.key FROM headgate.usage u WHERE u.key > f.key AND u.key < ends ORDER BY u.key LIMIT 1)
    FROM found f WHERE f.key IS NOT NULL
  )
  SELECT array_agg(p.key) INTO page FROM (SELECT f.key FROM found f WHERE f.key IS NOT NULL LIMIT most) AS p;
  DELETE FROM headgate.usage WHERE (key, limit_name, hour) IN (
    SELECT u.key, u.limit_name, u.hour FROM headgate.usage u
    WHERE u.key = ANY (page) AND u.hour < (now_ms - kept_ms) / 3600000 FOR UPDATE SKIP LOCKED
  );
  RETURN CASE WHEN cardinality(page) = most THEN page[most] || ' ' END;
END
$$;

-- Some of what there is of a namespace, about `most` rows.
CREATE OR REPLACE FUNCTION headgate.purge(patient_ms bigint, begins text, ends text, most integer)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  removed bigint := 0;
  more bigint;
BEGIN
  PERFORM set_config('lock_timeout', patient_ms::text, true);
  DELETE FROM headgate.records WHERE key IN (
    SELECT r.key FROM headgate.records r WHERE r.key >= begins AND r.key < ends ORDER BY r.key LIMIT most FOR UPDATE
  );
  GET DIAGNOSTICS removed = ROW_COUNT;
  IF removed < most THEN
    DELETE FROM headgate.buckets WHERE (key, limit_name) IN (
      SELECT b.key, b.limit_name FROM headgate.buckets b WHERE b.key >= begins AND b.key < ends
      ORDER BY b.key, b.limit_name LIMIT most - removed FOR UPDATE
    );
    GET DIAGNOSTICS more = ROW_COUNT;
    removed := removed + more;
  END IF;
  IF removed < most THEN
    DELETE FROM headgate.slots WHERE (key, limit_name, lease_id) IN (
      SELECT s.key, s.limit_name, s.lease_id FROM headgate.slots s WHERE s.key >= begins AND s.key < ends
      LIMIT most - removed
    );
    GET DIAGNOSTICS more = ROW_COUNT;
    removed := removed + more;
  END IF;
  DELETE FROM headgate.waiting WHERE (key, limit_name, lease_id) IN (
    SELECT w.key, w.limit_name, w.lease_id FROM headgate.waiting w WHERE w.key >= begins AND w.key < ends
    FOR UPDATE SKIP LOCKED
  );
  IF removed < most THEN
    DELETE FROM headgate.usage WHERE (key, limit_name, hour) IN (
      SELECT u.key, u.limit_name, u.hour FROM headgate.usage u WHERE u.key >= begins AND u.key < ends
      LIMIT most - removed
    );
    GET DIAGNOSTICS more = ROW_COUNT;
    removed := removed + more;
  END IF;
  RETURN removed;
END
$$;

-- Of the first key from `begins` on. All keys of a namespace are after "name/", and before "name0".
CREATE OR REPLACE FUNCTION headgate.next_namespace(begins text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT split_part(min(k.key COLLATE "C"), '/', 1) FROM (
    (SELECT b.key FROM headgate.buckets b WHERE b.key >= begins ORDER BY b.key LIMIT 1) UNION ALL
    (SELECT s.key FROM headgate.slots s WHERE s.key >= begins ORDER BY s.key LIMIT 1) UNION ALL
    (SELECT u.key FROM headgate.usage u WHERE u.key >= begins ORDER BY u.key LIMIT 1) UNION ALL
    (SELECT r.key FROM headgate.records r WHERE r.key >= begins ORDER BY r.key LIMIT 1)
  ) AS k
$$;

-- The namespaces of which anything is stored, from one to the next, however many rows there are of each.
CREATE OR REPLACE FUNCTION headgate.list_stored() RETURNS SETOF text LANGUAGE sql STABLE AS $$
  WITH RECURSIVE found AS (
    SELECT headgate.next_namespace('') AS name
    UNION ALL
    SELECT headgate.next_namespace(f.name || '0') FROM found f WHERE f.name IS NOT NULL
  )
  SELECT f.name FROM found f WHERE f.name <> '_'
$$;
