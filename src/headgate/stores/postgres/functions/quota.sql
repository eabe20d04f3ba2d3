-- What only quotas need of settle().

-- The moments at which the states of the parts of an entry would be settled, if a quota needs the window of its own and
-- came with another, or one of the parts is postponed; else null. None is needed while one is open, and by an earlier limit
-- than the last one.
CREATE OR REPLACE FUNCTION headgate.other_windows(
  asked bigint[], first integer, after integer, now_ms bigint, refills bigint[], periods bigint[], all_settled bigint[],
  remainders bigint[], revisions bigint[], postponed bigint[]
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  i integer;
  w integer;
  moment bigint;
  moments bigint[];
  another boolean := false;
BEGIN
  FOR p IN first .. after - 1 BY 6 LOOP
    i := asked[p];
    w := CASE WHEN asked[p + 2] < -1 THEN -asked[p + 2] END;
    moment := CASE WHEN refills[i] < 0 THEN greatest(all_settled[i], now_ms) ELSE now_ms END;
    moments := moments || moment;
    IF i = ANY (postponed) OR (w IS NOT NULL AND (moment < asked[w + 1] OR moment >= asked[w + 2]) AND CASE
        WHEN refills[i] >= 0 THEN true
        WHEN periods[i] = asked[w] THEN moment >= remainders[i]
        ELSE asked[p + 5] = 0 OR asked[p + 5] >= revisions[i] END) THEN
      another := true;
    END IF;
  END LOOP;
  RETURN CASE WHEN another THEN moments END;
END
$$;

-- The end of a window without a calendar: it begins when tokens are missing, and is over when none are.
CREATE OR REPLACE FUNCTION headgate.from_first_use(
  tokens bigint, capacity bigint, ends bigint, settled bigint, period bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN tokens >= capacity THEN 0 WHEN ends = 0 AND period > 0 THEN settled + period ELSE ends END
$$;

-- take() for a quota, with its window if it has a calendar, as in settle().
CREATE OR REPLACE FUNCTION headgate.take_quota(
  given_ms bigint, kept_ms bigint, patient_ms bigint, of_key text, of_name text,
  many bigint, capacity bigint, period bigint, starts bigint, ends bigint, amount bigint, wanted_revision bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $take$
DECLARE
  b record;
  now_ms bigint;
  moment bigint;
  passed bigint;
BEGIN
  PERFORM set_config('lock_timeout', patient_ms::text, true);
  SELECT ctid, tokens_milli, settled_at_ms, remainder, blocked_until_ms, revision, used_milli INTO b
    FROM headgate.buckets
    WHERE key = of_key AND limit_name = of_name AND settled_at_ms > 0
      AND capacity_milli = capacity AND refill_milli = -1 AND period_ms = period
      -- One that is corrupt is told by settle().
      AND settled_at_ms <= 1000000000000000 AND remainder BETWEEN 0 AND 999999999999999
      AND tokens_milli BETWEEN -9000000000000000000 AND capacity AND blocked_until_ms BETWEEN 0 AND 1000000000000000
      AND revision BETWEEN 0 AND 9007199254740992 AND used_milli BETWEEN -4000000000000000000 AND 4000000000000000000
    FOR NO KEY UPDATE;
  now_ms := headgate.clock(given_ms);
  moment := greatest(now_ms, b.settled_at_ms);
  IF b.settled_at_ms IS NULL OR (period < 0 AND moment >= b.remainder AND (moment < starts OR moment >= ends))
      OR (b.used_milli <> 0 AND (kept_ms = 0 OR b.settled_at_ms / 3600000 < now_ms / 3600000)) THEN
    RETURN headgate.settle(given_ms, kept_ms, patient_ms, true, ARRAY[of_key], ARRAY[of_name],
      CASE WHEN period < 0 THEN ARRAY[-3, period, starts, ends] ELSE '{}' END || ARRAY[0, many, 0, 0, 1000, 0, 1, 1,
        capacity, CASE WHEN period < 0 THEN -2 ELSE -1 END, period, amount, wanted_revision], '{}');
  END IF;
  IF b.remainder <= moment THEN
    b.tokens_milli := CASE WHEN b.remainder > 0 THEN capacity ELSE b.tokens_milli END;
    b.remainder := ends;
  END IF;
  passed := CASE
    WHEN b.blocked_until_ms > moment OR b.tokens_milli < amount THEN 0
    WHEN amount = 0 THEN many
    ELSE least(many, b.tokens_milli / amount) END;
  IF passed = 0 AND given_ms IS NULL THEN
    PERFORM set_config('synchronous_commit', 'off', true); -- nobody has to wait until nothing is on the disk
  ELSE
    UPDATE headgate.buckets SET tokens_milli = b.tokens_milli - passed * amount, settled_at_ms = moment,
        remainder = CASE WHEN period < 0 OR passed = 0 THEN b.remainder ELSE headgate.from_first_use(
          b.tokens_milli - passed * amount, capacity, b.remainder, moment, period) END,
        used_milli = CASE WHEN kept_ms > 0 THEN least(b.used_milli + passed * amount, 4000000000000000000) ELSE 0 END
      WHERE ctid = b.ctid;
  END IF;
  IF passed = many THEN
    RETURN ARRAY[passed, b.tokens_milli - passed * amount];
  END IF;
  RETURN ARRAY[passed, capacity, -1, period, b.tokens_milli, moment, b.remainder, b.blocked_until_ms, b.revision,
    0];
END
$take$;
