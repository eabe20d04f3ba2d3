-- Changes records, all or none.
--
-- whats      put, delete or check; expected: a version or null; expires: null for never
-- raises     HG409 with the key of the first record that has not the version expected
CREATE OR REPLACE FUNCTION headgate.write_records(
  given_ms bigint, patient_ms bigint, whats text[], keys text[], expected bigint[], expires bigint[], texts text[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  now_ms bigint := headgate.clock(given_ms);
  conflict text;
BEGIN
  PERFORM set_config('lock_timeout', patient_ms::text, true);
  -- Locks every record, and makes those that are not there, in the order of their keys.
  INSERT INTO headgate.records (key, value, version)
    SELECT w.key, '', 0 FROM unnest(keys) AS w (key) ORDER BY w.key COLLATE "C"
    ON CONFLICT ON CONSTRAINT records_pkey DO UPDATE SET version = 0 WHERE false;
  UPDATE headgate.records r SET version = 0 WHERE r.key = ANY (keys) AND r.expires_at_ms <= now_ms;
  SELECT w.key INTO conflict
    FROM unnest(keys, expected) WITH ORDINALITY AS w (key, version, place) JOIN headgate.records r ON r.key = w.key
    WHERE w.version <> r.version ORDER BY w.place LIMIT 1;
  IF conflict IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'HG409', MESSAGE = conflict;
  END IF;
  UPDATE headgate.records r SET value = w.value, version = r.version + 1, expires_at_ms = w.expires
    FROM unnest(whats, keys, expires, texts) AS w (what, key, expires, value)
    WHERE r.key = w.key AND w.what = 'put';
  DELETE FROM headgate.records r USING unnest(whats, keys) AS w (what, key)
    WHERE r.key = w.key AND (w.what = 'delete' OR r.version = 0);
  -- What has expired goes faster than more can come.
  DELETE FROM headgate.records WHERE key IN (
    SELECT r.key FROM headgate.records r WHERE r.expires_at_ms <= now_ms LIMIT 200 FOR UPDATE SKIP LOCKED
  );
END
$$;
