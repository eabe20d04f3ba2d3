-- Notes what a bucket has counted in an hour, and out goes what is too old, unless kept_ms is 0. The bucket's row is
-- locked.
CREATE OR REPLACE FUNCTION headgate.put_away(
  of_key text, of_name text, of_hour bigint, milli bigint, now_ms bigint, kept_ms bigint
) RETURNS void LANGUAGE sql AS $$
  INSERT INTO headgate.usage AS u VALUES (of_key, of_name, of_hour, milli)
    ON CONFLICT ON CONSTRAINT usage_pkey DO UPDATE SET used_milli =
      greatest(least(u.used_milli + excluded.used_milli, 4000000000000000000), -4000000000000000000);
  DELETE FROM headgate.usage u
    WHERE u.key = of_key AND u.limit_name = of_name AND kept_ms > 0 AND u.hour < (now_ms - kept_ms) / 3600000;
$$;
