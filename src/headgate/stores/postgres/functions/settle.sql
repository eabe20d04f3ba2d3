-- Settles a batch: core.decide for each request in order, all or nothing, in the order in which they came.
--
-- given_ms   the time, or null for that of the server
-- kept_ms    how long usage is kept, 0 if none is counted
-- patient_ms how long to wait for a lock
-- changes    false: all only look, and nothing is locked
-- keys, names  where the buckets are that any request is about, each once, in their order
-- asked      for each entry (equal requests): mode, how many, max_wait_ms, block_ms, keep_milli, which of the leases or 0,
--            number of parts; for each part: which of the keys, capacity, refill, period, amount, revision.
--            Of a quota refill is -1, and period its length from first use. One with a calendar has, instead of refill,
--            minus the place in `asked` of three numbers: one below zero that tells calendars apart and is stored as its
--            period, and from when until when the client believes its window to be. They come first, after minus their
--            number; there are none if the first number is a mode.
--            A take of slots has, instead of block_ms, one more than place_ms, and 0 if it overtakes those who wait. If it
--            may wait itself, the listener comes after its lease.
-- returns    for each entry how many passed. If it was a take that could not wait, and all passed: what is left on each
--            part. Else nine numbers for each part: capacity, refill, period, tokens, settled_at, remainder, blocked_until,
--            revision, 0, as they were before. Of slots, what is held or wanted ahead in place of tokens, when the amount fits in place of the
--            remainder, and what of it the lease holds in the last place.
--            Of an entry with a bucket that is corrupt instead: -1, which of its parts, which field (core/stored.py).
--            Of an entry with a quota that needs another window, or with a part that such an entry has before it: -2, the
--            time, and for each part the moment at which it would be settled.
CREATE OR REPLACE FUNCTION headgate.settle(
  given_ms bigint, kept_ms bigint, patient_ms bigint, changes boolean,
  keys text[], names text[], asked bigint[], leases text[]
) RETURNS bigint[] LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $settle$
DECLARE
  TAKE CONSTANT bigint := 0;
  FORCE CONSTANT bigint := 1;
  PEEK CONSTANT bigint := 2;
  PENALIZE CONSTANT bigint := 3;
  LOWER CONSTANT bigint := 4;
  RENEW CONSTANT bigint := 5;
  HOUR CONSTANT bigint := 3600000;
  FITS CONSTANT bigint := 4000000000000000000; -- a product up to this, and a sum with it, is within 63 bits
  DEBT CONSTANT bigint := 1000000000000000000; -- MAX_DEBT_MILLI
  NEVER CONSTANT bigint := 4611686018427387904;
  MOST CONSTANT bigint := 1000000000000000; -- MAX_MILLI, and LATEST_MS too
  CORRUPT CONSTANT bigint := -1;
  ANOTHER_WINDOW CONSTANT bigint := -2;

  now_ms bigint;
  capacities bigint[]; refills bigint[]; periods bigint[]; all_tokens bigint[]; all_settled bigint[];
  remainders bigint[]; blocks bigint[]; revisions bigint[]; all_used bigint[];
  changed boolean[]; flaws bigint[]; flawed boolean;

  dated boolean := asked[1] < 0;
  at integer := CASE WHEN asked[1] < 0 THEN 2 - asked[1] ELSE 1 END;
  last integer := cardinality(asked);
  mode bigint; many bigint; max_wait bigint; block bigint; keep bigint; lease text; parts integer;
  first integer; after integer; p integer; i integer;
  amount bigint; passed bigint; budget bigint; mine bigint; whole boolean; blank boolean; adopts boolean;
  wanted_capacity bigint; wanted_refill bigint; wanted_period bigint; wanted_revision bigint;
  capacity bigint; refill bigint; period bigint; tokens bigint; settled bigint; remainder bigint;
  blocked bigint; revision bigint; used bigint; elapsed bigint; gained bigint; exact numeric;
  ends bigint; moments bigint[]; postponed bigint[];
  own bigint[] := '{}';
  place bigint; before bigint; ahead bigint; anew boolean; waits boolean;
  befores bigint[] := '{}'; aheads bigint[] := '{}'; freed boolean[] := '{}';
  out bigint[] := '{}';
BEGIN
  IF changes THEN
    PERFORM set_config('lock_timeout', patient_ms::text, true);
    -- Locks every row, and makes those that are not there: one after the other in the order of their keys, so that
    -- nobody waits for somebody who waits. What is there is not changed.
    INSERT INTO headgate.buckets (key, limit_name) SELECT * FROM unnest(keys, names)
      ON CONFLICT ON CONSTRAINT buckets_pkey DO UPDATE SET revision = 0 WHERE false;
  END IF;
  now_ms := headgate.clock(given_ms);
  -- From the list, one lookup after the other: whatever the planner knows, the rows come in its order.
  SELECT array_agg(coalesce(b.capacity_milli, 0)), array_agg(coalesce(b.refill_milli, 0)),
      array_agg(coalesce(b.period_ms, 0)), array_agg(coalesce(b.tokens_milli, 0)),
      array_agg(coalesce(b.settled_at_ms, 0)), array_agg(coalesce(b.remainder, 0)),
      array_agg(coalesce(b.blocked_until_ms, 0)), array_agg(coalesce(b.revision, 0)),
      array_agg(coalesce(b.used_milli, 0)), array_agg(false), array_agg(b.flaw), bool_or(b.flaw > 0)
    INTO capacities, refills, periods, all_tokens, all_settled, remainders, blocks, revisions, all_used, changed,
      flaws, flawed
    FROM unnest(keys, names) AS w (key, name)
    LEFT JOIN LATERAL (
      SELECT *, CASE
        WHEN c.settled_at_ms = 0 THEN 0
        WHEN c.capacity_milli NOT BETWEEN 1 AND MOST THEN 1
        WHEN c.refill_milli NOT BETWEEN -1 AND MOST THEN 2
        WHEN c.period_ms NOT BETWEEN CASE WHEN c.refill_milli < 0 THEN -4294967296 ELSE 1 END AND 31622400000 THEN 3
        WHEN c.settled_at_ms NOT BETWEEN 0 AND MOST THEN 5
        WHEN c.blocked_until_ms NOT BETWEEN 0 AND MOST THEN 7
        WHEN c.revision NOT BETWEEN 0 AND 9007199254740992 THEN 8
        WHEN c.used_milli NOT BETWEEN -FITS AND FITS THEN 9
        WHEN c.refill_milli <> 0 AND c.tokens_milli NOT BETWEEN -9 * DEBT AND c.capacity_milli THEN 4
        WHEN c.refill_milli > 0 AND c.remainder NOT BETWEEN 0 AND c.period_ms - 1 THEN 6
        WHEN c.refill_milli < 0 AND c.remainder NOT BETWEEN 0 AND MOST - 1 THEN 6
        WHEN c.refill_milli = 0 AND c.tokens_milli NOT BETWEEN 0 AND FITS THEN 4
        WHEN c.refill_milli = 0 AND c.remainder NOT BETWEEN 0 AND NEVER THEN 6
        -- Only when they are counted anew: there may be many.
        WHEN c.refill_milli = 0 AND c.remainder <= now_ms AND EXISTS (
          SELECT FROM headgate.slots s WHERE s.key = c.key AND s.limit_name = c.limit_name
            AND (s.held_milli NOT BETWEEN 1 AND MOST OR s.expires_at_ms NOT BETWEEN 0 AND MOST)
        ) THEN 10
        ELSE 0 END AS flaw
      FROM headgate.buckets c WHERE c.key = w.key AND c.limit_name = w.name OFFSET 0
    ) AS b ON true;

  <<entries>>
  WHILE at <= last LOOP
    mode := asked[at]; many := asked[at + 1]; max_wait := asked[at + 2];
    block := asked[at + 3]; keep := asked[at + 4]; parts := asked[at + 6];
    lease := CASE WHEN asked[at + 5] > 0 THEN leases[asked[at + 5]] END;
    first := at + 7;
    after := first + 6 * parts;
    passed := many;
    IF flawed THEN
      FOR p IN first .. after - 1 BY 6 LOOP
        IF flaws[asked[p]] > 0 THEN
          out := out || ARRAY[CORRUPT, (p - first) / 6 + 1, flaws[asked[p]]];
          at := after;
          CONTINUE entries;
        END IF;
      END LOOP;
    END IF;
    IF dated THEN
      moments := headgate.other_windows(asked, first, after, now_ms, refills, periods, all_settled, remainders, revisions,
        postponed);
      IF moments IS NOT NULL THEN
        out := out || ANOTHER_WINDOW || now_ms || moments;
        FOR p IN first .. after - 1 BY 6 LOOP
          postponed := postponed || asked[p];
        END LOOP;
        at := after;
        CONTINUE entries;
      END IF;
    END IF;
    place := CASE WHEN mode = TAKE THEN block - 1 ELSE 0 END;
    waits := mode = TAKE AND place > 0;

    -- Bring the state of each part up to now, under the limit of the part.
    FOR p IN first .. after - 1 BY 6 LOOP
      i := asked[p]; wanted_capacity := asked[p + 1]; wanted_refill := asked[p + 2]; wanted_period := asked[p + 3];
      amount := asked[p + 4]; wanted_revision := asked[p + 5];
      settled := all_settled[i]; refill := refills[i]; used := all_used[i];
      IF wanted_refill < 0 THEN
        ends := 0;
        IF wanted_refill < -1 THEN
          wanted_period := asked[-wanted_refill]; ends := asked[2 - wanted_refill]; wanted_refill := -1;
        END IF;
      END IF;
      blank := settled = 0;
      anew := false; before := 0; ahead := 0;
      freed[(p - first) / 6] := false;
      adopts := changes AND (mode <> PEEK OR blank);
      IF used <> 0 AND changes
          AND (settled / HOUR < now_ms / HOUR OR (mode <> PEEK
            AND (kept_ms = 0 OR wanted_refill = 0 OR (refill < 0) <> (wanted_refill < 0)))) THEN
        PERFORM headgate.put_away(keys[i], names[i], settled / HOUR, used, now_ms, kept_ms);
        all_used[i] := 0;
        changed[i] := true;
      END IF;

      IF blank OR (refill = 0) <> (wanted_refill = 0) OR (refill < 0) <> (wanted_refill < 0) THEN
        -- It begins anew, full or free.
        IF adopts AND (wanted_refill = 0 OR NOT blank) THEN
          DELETE FROM headgate.slots s WHERE s.key = keys[i] AND s.limit_name = names[i];
          DELETE FROM headgate.waiting w WHERE w.key = keys[i] AND w.limit_name = names[i];
        END IF;
        anew := true;
        changed[i] := changed[i] OR (adopts AND (NOT blank OR given_ms IS NOT NULL));
        capacity := wanted_capacity; refill := wanted_refill; period := wanted_period; revision := wanted_revision;
        tokens := CASE WHEN refill = 0 THEN 0 ELSE capacity END;
        remainder := CASE WHEN refill = 0 THEN NEVER WHEN refill < 0 THEN ends ELSE 0 END;
        settled := now_ms; blocked := 0;
      ELSE
        capacity := capacities[i]; period := periods[i]; tokens := all_tokens[i]; remainder := remainders[i];
        blocked := blocks[i]; revision := revisions[i];
        elapsed := now_ms - settled;
        IF elapsed > 0 AND refill >= 0 THEN
          settled := now_ms;
          IF refill = 0 THEN
            IF remainder <= settled THEN
              IF changes THEN
                DELETE FROM headgate.slots s
                  WHERE s.key = keys[i] AND s.limit_name = names[i] AND s.expires_at_ms <= settled;
                changed[i] := true;
                freed[(p - first) / 6] := true;
              END IF;
              SELECT coalesce(sum(s.held_milli), 0), coalesce(min(s.expires_at_ms), NEVER) INTO tokens, remainder
                FROM headgate.slots s
                WHERE s.key = keys[i] AND s.limit_name = names[i] AND s.expires_at_ms > settled;
            END IF;
          ELSIF tokens >= capacity THEN
            remainder := 0;
          ELSE
            IF elapsed <= FITS / refill THEN
              gained := elapsed * refill + remainder;
              remainder := gained % period;
              gained := gained / period;
            ELSE
              exact := elapsed::numeric * refill + remainder;
              remainder := mod(exact, period);
              gained := least(div(exact, period), FITS);
            END IF;
            tokens := tokens + gained;
            IF tokens >= capacity THEN
              tokens := capacity; remainder := 0;
            END IF;
          END IF;
          -- The clocks of clients disagree, so that having looked has to be remembered.
          changed[i] := changed[i] OR given_ms IS NOT NULL;
        ELSIF refill < 0 THEN
          settled := greatest(settled, now_ms);
          IF remainder <= settled THEN
            IF remainder > 0 THEN
              tokens := capacity;
            END IF;
            remainder := CASE WHEN period = wanted_period THEN ends ELSE 0 END;
          END IF;
          changed[i] := changed[i] OR (elapsed > 0 AND given_ms IS NOT NULL);
        END IF;
        IF mode = PEEK THEN
          all_tokens[i] := tokens; all_settled[i] := settled; remainders[i] := remainder;
        END IF;
        IF (capacity <> wanted_capacity OR refill <> wanted_refill OR period <> wanted_period)
            AND (wanted_revision = 0 OR wanted_revision >= revision) THEN
          IF wanted_revision <> 0 THEN
            revision := wanted_revision;
          END IF;
          IF refill <> 0 THEN
            tokens := greatest(tokens + wanted_capacity - capacity, -DEBT); -- what was used stays used
          END IF;
          IF refill > 0 THEN
            remainder := div(remainder::numeric * wanted_period, period);
          ELSIF wanted_period < 0 THEN
            remainder := CASE WHEN period = wanted_period THEN remainder ELSE ends END;
          ELSIF refill < 0 THEN
            remainder := CASE WHEN period > 0 AND remainder > 0 THEN remainder + wanted_period - period ELSE 0 END;
            remainder := headgate.from_first_use(tokens, wanted_capacity, remainder, settled, wanted_period);
            IF remainder > 0 AND remainder <= settled THEN
              tokens := wanted_capacity; remainder := 0;
            END IF;
          END IF;
          capacity := wanted_capacity; refill := wanted_refill; period := wanted_period;
          changed[i] := changed[i] OR adopts;
          freed[(p - first) / 6] := true;
        END IF;
      END IF;
      IF adopts THEN
        capacities[i] := capacity; refills[i] := refill; periods[i] := period; all_tokens[i] := tokens;
        all_settled[i] := settled; remainders[i] := remainder; blocks[i] := blocked; revisions[i] := revision;
      END IF;

      IF refill = 0 THEN
        mine := 0;
        IF lease IS NOT NULL AND tokens > 0 THEN
          mine := coalesce((SELECT s.held_milli FROM headgate.slots s
            WHERE s.key = keys[i] AND s.limit_name = names[i] AND s.lease_id = lease AND s.expires_at_ms > settled
              AND s.held_milli BETWEEN 1 AND MOST), 0);
        END IF;
        IF place >= 0 AND NOT anew THEN
          before := headgate.place_of(keys[i], names[i], lease, settled);
          ahead := headgate.wanted_before(keys[i], names[i], before, settled);
        END IF;
        own[(p - first) / 6] := mine; befores[(p - first) / 6] := before; aheads[(p - first) / 6] := ahead;
        IF mode = TAKE
            AND (blocked > settled OR amount > capacity OR (amount > 0 AND tokens + ahead + amount > capacity)) THEN
          passed := 0;
          waits := waits AND amount <= capacity;
        END IF;
      ELSIF mode = TAKE THEN
        -- What there is, and what there will be until one has waited long enough.
        budget := tokens;
        IF max_wait > 0 AND refill > 0 THEN
          IF max_wait <= FITS / refill THEN
            budget := budget + (max_wait * refill + remainder) / period;
          ELSE
            budget := budget + least(div(max_wait::numeric * refill + remainder, period), FITS);
          END IF;
        END IF;
        IF blocked - settled > max_wait OR amount > capacity OR budget < amount
            OR (refill < 0 AND blocked > settled) THEN
          passed := 0;
          waits := false;
        ELSIF amount > 0 THEN
          passed := least(passed, budget / amount);
        END IF;
      END IF;
      IF mode = PEEK THEN
        out := out || CASE WHEN p = first THEN ARRAY[many] END || ARRAY[capacity, refill, period,
          tokens + ahead, settled, CASE WHEN refill = 0
            THEN headgate.fits_at(keys[i], names[i], amount, tokens + ahead, capacity, settled, before)
            ELSE remainder END, blocked, revision, CASE WHEN refill = 0 THEN mine ELSE 0 END];
      END IF;
    END LOOP;

    IF mode <> PEEK THEN
      out := out || passed;
      whole := mode = TAKE AND max_wait = 0 AND passed = many;
      FOR p IN first .. after - 1 BY 6 LOOP
        i := asked[p]; amount := asked[p + 4];
        capacity := capacities[i]; refill := refills[i]; tokens := all_tokens[i]; settled := all_settled[i];
        mine := 0; ahead := 0; before := 0;
        IF refill = 0 THEN
          mine := own[(p - first) / 6]; ahead := aheads[(p - first) / 6]; before := befores[(p - first) / 6];
        END IF;
        IF NOT whole THEN
          out := out || ARRAY[capacity, refill, periods[i], tokens + ahead, settled, CASE WHEN refill = 0
              THEN headgate.fits_at(keys[i], names[i], amount, tokens + ahead, capacity, settled, before)
              ELSE remainders[i] END, blocks[i], revisions[i], mine];
        END IF;
        IF mode = PENALIZE THEN
          IF block > 0 THEN
            blocks[i] := greatest(blocks[i], settled + block);
          END IF;
          IF refill <> 0 AND keep < 1000 AND tokens >= 0 THEN
            all_tokens[i] := tokens * keep / 1000;
            remainders[i] := CASE WHEN refill > 0 THEN 0 ELSE remainders[i] END;
          END IF;
          changed[i] := true;
        ELSIF refill = 0 THEN
          budget := CASE
            WHEN mode = TAKE AND passed > 0 THEN mine + amount
            WHEN mode = FORCE AND amount < 0 AND mine > 0 THEN greatest(mine + amount, 0)
            WHEN mode = RENEW AND mine > 0 THEN mine
            ELSE -1 END;
          IF budget >= 0 THEN
            PERFORM headgate.hold(keys[i], names[i], lease, budget, settled + asked[p + 3], budget < mine);
            all_tokens[i] := tokens + budget - mine;
            remainders[i] := least(remainders[i], settled + asked[p + 3]);
            changed[i] := true;
            freed[(p - first) / 6] := freed[(p - first) / 6] OR budget < mine;
            IF whole THEN
              tokens := all_tokens[i];
            END IF;
          END IF;
          IF waits AND passed = 0 AND amount > 0 THEN
            PERFORM headgate.queue_up(keys[i], names[i], lease, amount, settled, settled + place,
              leases[asked[at + 5] + 1]);
          ELSIF mode = TAKE OR mode = FORCE THEN
            DELETE FROM headgate.waiting w WHERE w.key = keys[i] AND w.limit_name = names[i] AND w.lease_id = lease;
            freed[(p - first) / 6] := freed[(p - first) / 6] OR (FOUND AND (mode = FORCE OR passed = 0));
          END IF;
          IF freed[(p - first) / 6] AND blocks[i] <= settled THEN
            PERFORM headgate.wake(keys[i], names[i], capacity - all_tokens[i], capacity, settled);
          END IF;
        ELSIF mode = TAKE THEN
          IF passed > 0 THEN
            tokens := greatest(tokens - passed * amount, -9 * DEBT);
            all_tokens[i] := tokens;
            changed[i] := true;
            IF kept_ms > 0 THEN
              all_used[i] := least(all_used[i] + passed * amount, FITS);
            END IF;
          END IF;
        ELSIF mode = FORCE THEN
          tokens := greatest(tokens - amount, -DEBT);
          IF tokens >= capacity THEN
            tokens := capacity;
            remainders[i] := CASE WHEN refill > 0 THEN 0 ELSE remainders[i] END;
          END IF;
          all_tokens[i] := tokens;
          changed[i] := true;
          IF kept_ms > 0 THEN
            all_used[i] := greatest(least(all_used[i] + amount, FITS), -FITS);
          END IF;
        ELSIF mode = LOWER AND tokens >= amount THEN
          all_tokens[i] := amount;
          remainders[i] := CASE WHEN refill > 0 THEN 0 ELSE remainders[i] END;
          changed[i] := true;
        END IF;
        IF refill < 0 AND passed > 0 AND periods[i] >= 0 THEN
          remainders[i] := headgate.from_first_use(all_tokens[i], capacity, remainders[i], settled, periods[i]);
        END IF;
        IF whole THEN
          out := out || CASE WHEN refill = 0 THEN capacity - tokens - ahead ELSE tokens END;
        END IF;
      END LOOP;
    END IF;
    at := after;
  END LOOP;

  IF changes THEN
    IF true = ANY (changed) THEN
      INSERT INTO headgate.buckets AS b
        SELECT w.key, w.name, w.c, w.r, w.p, w.t, w.s, w.m, w.b, w.v, w.u
        FROM unnest(keys, names, capacities, refills, periods, all_tokens, all_settled, remainders, blocks, revisions,
          all_used, changed) AS w (key, name, c, r, p, t, s, m, b, v, u, changed)
        WHERE w.changed
        ON CONFLICT ON CONSTRAINT buckets_pkey DO UPDATE SET (capacity_milli, refill_milli, period_ms, tokens_milli,
          settled_at_ms, remainder, blocked_until_ms, revision, used_milli) = (excluded.capacity_milli,
          excluded.refill_milli, excluded.period_ms, excluded.tokens_milli, excluded.settled_at_ms, excluded.remainder,
          excluded.blocked_until_ms, excluded.revision, excluded.used_milli);
    ELSE
      PERFORM set_config('synchronous_commit', 'off', true); -- nobody has to wait until nothing is on the disk
    END IF;
  END IF;
  RETURN out;
END
$settle$;
