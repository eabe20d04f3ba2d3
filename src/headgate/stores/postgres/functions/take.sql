-- settle() for what most batches are: equal takes from one bucket that is there, by callers who cannot wait. Anything
-- else about it is left to settle(). Returns the same.
CREATE OR REPLACE FUNCTION headgate.take(
  given_ms bigint, kept_ms bigint, patient_ms bigint, of_key text, of_name text,
  many bigint, capacity bigint, refill bigint, period bigint, amount bigint, wanted_revision bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $take$
DECLARE
  b record;
  now_ms bigint;
  elapsed bigint;
  gained bigint;
  passed bigint;
BEGIN
  PERFORM set_config('lock_timeout', patient_ms::text, true);
  SELECT ctid, tokens_milli, settled_at_ms, remainder, blocked_until_ms, revision, used_milli INTO b
    FROM headgate.buckets
    WHERE key = of_key AND limit_name = of_name
      AND capacity_milli = capacity AND refill_milli = refill AND period_ms = period AND settled_at_ms > 0
      -- One that is corrupt is told by settle().
      AND settled_at_ms <= 1000000000000000 AND remainder BETWEEN 0 AND period - 1
      AND tokens_milli BETWEEN -9000000000000000000 AND capacity AND blocked_until_ms BETWEEN 0 AND 1000000000000000
      AND revision BETWEEN 0 AND 9007199254740992 AND used_milli BETWEEN -4000000000000000000 AND 4000000000000000000
    FOR NO KEY UPDATE;
  now_ms := headgate.clock(given_ms);
  elapsed := now_ms - b.settled_at_ms;
  IF elapsed IS NULL OR elapsed >= 4000000000000000000 / refill
      OR (b.used_milli <> 0 AND (kept_ms = 0 OR b.settled_at_ms / 3600000 < now_ms / 3600000)) THEN
    RETURN headgate.settle(given_ms, kept_ms, patient_ms, true, ARRAY[of_key], ARRAY[of_name],
      ARRAY[0, many, 0, 0, 1000, 0, 1, 1, capacity, refill, period, amount, wanted_revision], '{}');
  END IF;
  IF elapsed > 0 THEN
    gained := elapsed * refill + b.remainder;
    b.settled_at_ms := now_ms;
    b.tokens_milli := b.tokens_milli + gained / period;
    b.remainder := gained % period;
    IF b.tokens_milli >= capacity THEN
      b.tokens_milli := capacity;
      b.remainder := 0;
    END IF;
  END IF;
  passed := CASE
    WHEN b.blocked_until_ms > b.settled_at_ms OR b.tokens_milli < amount THEN 0
    WHEN amount = 0 THEN many
    ELSE least(many, b.tokens_milli / amount) END;
  IF passed = 0 AND given_ms IS NULL THEN
    PERFORM set_config('synchronous_commit', 'off', true); -- nobody has to wait until nothing is on the disk
  ELSE
    UPDATE headgate.buckets SET tokens_milli = b.tokens_milli - passed * amount, settled_at_ms = b.settled_at_ms,
        remainder = b.remainder,
        used_milli = CASE WHEN kept_ms > 0 THEN least(b.used_milli + passed * amount, 4000000000000000000) ELSE 0 END
      WHERE ctid = b.ctid;
  END IF;
  IF passed = many THEN
    RETURN ARRAY[passed, b.tokens_milli - passed * amount];
  END IF;
  RETURN ARRAY[passed, capacity, refill, period, b.tokens_milli, b.settled_at_ms, b.remainder, b.blocked_until_ms,
    b.revision, 0];
END
$take$;
