-- What the table of slots is to settle(), which has locked the row that they belong to.

-- When so many have run out that the amount fits; 0 if it does now, or never will. What is wanted at places before a place
-- counts as held until these expire.
DROP FUNCTION IF EXISTS headgate.fits_at(text, text, bigint, bigint, bigint, bigint);
CREATE OR REPLACE FUNCTION headgate.fits_at(
  of_key text, of_name text, amount bigint, taken bigint, capacity bigint, settled bigint, before bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  IF amount <= 0 OR amount > capacity OR amount + taken <= capacity THEN
    RETURN 0;
  END IF;
  RETURN (
    SELECT run_out.ends
    FROM (
      SELECT t.ends, sum(t.milli) OVER (ORDER BY t.ends) AS free FROM (
        SELECT s.expires_at_ms, s.held_milli FROM headgate.slots s
          WHERE s.key = of_key AND s.limit_name = of_name AND s.expires_at_ms > settled
        UNION ALL
        SELECT w.expires_at_ms, w.wanted_milli FROM headgate.waiting w
          WHERE w.key = of_key AND w.limit_name = of_name AND w.expires_at_ms > settled AND w.place < before
      ) AS t (ends, milli)
    ) AS run_out
    WHERE run_out.free >= amount + taken - capacity ORDER BY run_out.free LIMIT 1
  );
END
$$;

-- Tells clients of functions before revision 3, which knew no queue, that slots have come free. To notify takes a lock that all of the server shares, so nobody
-- does for nothing: who listens holds a lock that says so. Both know the place by a hash.
CREATE OR REPLACE FUNCTION headgate.tell(of_key text, of_name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  place CONSTANT text := left(encode(sha256(convert_to(of_key || ' ' || of_name, 'UTF8')), 'hex'), 32);
  lock CONSTANT integer := ('x' || left(place, 8))::bit(32)::integer;
BEGIN
  IF NOT pg_try_advisory_xact_lock(hashtext('headgate.slots'), lock) THEN
    PERFORM pg_notify('headgate.slots', place);
  END IF;
END
$$;

-- Lets a lease hold so much until a moment. `fewer`: than before, so that those who wait for a slot are told.
CREATE OR REPLACE FUNCTION headgate.hold(
  of_key text, of_name text, lease text, milli bigint, until_ms bigint, fewer boolean
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF milli > 0 THEN
    INSERT INTO headgate.slots VALUES (of_key, of_name, lease, milli, until_ms)
      ON CONFLICT ON CONSTRAINT slots_pkey
      DO UPDATE SET held_milli = excluded.held_milli, expires_at_ms = excluded.expires_at_ms;
  ELSE
    DELETE FROM headgate.slots s WHERE s.key = of_key AND s.limit_name = of_name AND s.lease_id = lease;
  END IF;
  IF fewer THEN
    PERFORM headgate.tell(of_key, of_name);
  END IF;
END
$$;
