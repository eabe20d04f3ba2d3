-- What only quotas need of settle().

-- The moments at which the states of the parts of an entry would be settled, if that of a quota is not in the window that
-- it came with, or one of the parts is astray; else null.
CREATE OR REPLACE FUNCTION headgate.other_windows(
  parts bigint[], refills bigint[], settled bigint[], now_ms bigint, astray bigint[]
) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN bool_or(parts[p] = ANY (astray)
        OR (parts[p + 2] < -1 AND (m.moment < parts[p + 3] OR m.moment >= -parts[p + 2])))
      THEN array_agg(m.moment ORDER BY p) END
    FROM generate_series(1, cardinality(parts), 6) AS p,
      LATERAL (SELECT CASE WHEN refills[parts[p]] < 0 THEN greatest(settled[parts[p]], now_ms) ELSE now_ms END) AS m (moment)
$$;

-- The end of a window without a calendar: it begins when tokens are missing, and is over when none are.
CREATE OR REPLACE FUNCTION headgate.from_first_use(
  tokens bigint, capacity bigint, ends bigint, settled bigint, period bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN tokens >= capacity THEN 0 WHEN ends = 0 AND period > 0 THEN settled + period ELSE ends END
$$;
