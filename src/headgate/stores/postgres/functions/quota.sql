-- What only quotas need of settle().

-- The moments at which the states of the parts of an entry would be settled, if that of a quota is not in the window that
-- it came with, or one of the parts is astray; else null.
CREATE OR REPLACE FUNCTION headgate.other_windows(
  parts bigint[], refills bigint[], settled bigint[], now_ms bigint, astray bigint[]
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  moment bigint;
  moments bigint[];
  found boolean := false;
BEGIN
  FOR p IN 1 .. cardinality(parts) BY 6 LOOP
    moment := CASE WHEN refills[parts[p]] < 0 THEN greatest(settled[parts[p]], now_ms) ELSE now_ms END;
    moments := moments || moment;
    IF parts[p] = ANY (astray) OR (parts[p + 2] < -1 AND (moment < parts[p + 3] OR moment >= -parts[p + 2])) THEN
      found := true;
    END IF;
  END LOOP;
  RETURN CASE WHEN found THEN moments END;
END
$$;

-- The end of a window without a calendar: it begins when tokens are missing, and is over when none are.
CREATE OR REPLACE FUNCTION headgate.from_first_use(
  tokens bigint, capacity bigint, ends bigint, settled bigint, period bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN tokens >= capacity THEN 0 WHEN ends = 0 AND period > 0 THEN settled + period ELSE ends END
$$;

-- take() for a quota, which comes with its window as in settle().
CREATE OR REPLACE FUNCTION headgate.take_quota(
  given_ms bigint, kept_ms bigint, patient_ms bigint, of_key text, of_name text,
  many bigint, capacity bigint, refill bigint, period bigint, amount bigint, wanted_revision bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $take$
DECLARE
  b record;
  now_ms bigint;
  dated CONSTANT boolean := refill < -1;
  passed bigint;
BEGIN
  PERFORM set_config('lock_timeout', patient_ms::text, true);
  SELECT ctid, tokens_milli, settled_at_ms, remainder, blocked_until_ms, revision, used_milli INTO b
    FROM headgate.buckets
    WHERE key = of_key AND limit_name = of_name AND settled_at_ms > 0
      AND capacity_milli = capacity AND refill_milli = -1 AND period_ms = CASE WHEN dated THEN 0 ELSE period END
      -- One that is corrupt, or was in another calendar, is for settle().
      AND settled_at_ms <= 1000000000000000 AND remainder BETWEEN 0 AND 999999999999999
      AND tokens_milli BETWEEN -9000000000000000000 AND capacity AND blocked_until_ms BETWEEN 0 AND 1000000000000000
      AND revision BETWEEN 0 AND 9007199254740992 AND used_milli BETWEEN -4000000000000000000 AND 4000000000000000000
      AND (NOT dated OR CASE WHEN settled_at_ms < period THEN remainder BETWEEN 1 AND period ELSE remainder = -refill END)
    FOR NO KEY UPDATE;
  now_ms := headgate.clock(given_ms);
  IF b.settled_at_ms IS NULL OR (dated AND greatest(now_ms, b.settled_at_ms) NOT BETWEEN period AND -refill - 1)
      OR (b.used_milli <> 0 AND (kept_ms = 0 OR b.settled_at_ms / 3600000 < now_ms / 3600000)) THEN
    RETURN headgate.settle(given_ms, kept_ms, patient_ms, true, ARRAY[of_key], ARRAY[of_name],
      ARRAY[0, many, 0, 0, 1000, 0, CASE WHEN dated THEN -1 ELSE 1 END, 1, capacity, refill, period, amount,
        wanted_revision], '{}');
  END IF;
  b.settled_at_ms := greatest(now_ms, b.settled_at_ms);
  IF b.remainder <= b.settled_at_ms THEN
    b.tokens_milli := CASE WHEN b.remainder > 0 THEN capacity ELSE b.tokens_milli END;
    b.remainder := CASE WHEN dated THEN -refill ELSE 0 END;
  END IF;
  passed := CASE
    WHEN b.blocked_until_ms > b.settled_at_ms OR b.tokens_milli < amount THEN 0
    WHEN amount = 0 THEN many
    ELSE least(many, b.tokens_milli / amount) END;
  IF passed = 0 AND given_ms IS NULL THEN
    PERFORM set_config('synchronous_commit', 'off', true); -- nobody has to wait until nothing is on the disk
  ELSE
    UPDATE headgate.buckets SET tokens_milli = b.tokens_milli - passed * amount, settled_at_ms = b.settled_at_ms,
        remainder = CASE WHEN dated OR passed = 0 THEN b.remainder ELSE headgate.from_first_use(
          b.tokens_milli - passed * amount, capacity, b.remainder, b.settled_at_ms, period) END,
        used_milli = CASE WHEN kept_ms > 0 THEN least(b.used_milli + passed * amount, 4000000000000000000) ELSE 0 END
      WHERE ctid = b.ctid;
  END IF;
  IF passed = many THEN
    RETURN ARRAY[passed, b.tokens_milli - passed * amount];
  END IF;
  RETURN ARRAY[passed, capacity, -1, CASE WHEN dated THEN 0 ELSE period END, b.tokens_milli, b.settled_at_ms, b.remainder,
    b.blocked_until_ms, b.revision, 0];
END
$take$;
