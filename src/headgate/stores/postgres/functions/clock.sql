-- The time that was given, or that of the server.
CREATE OR REPLACE FUNCTION headgate.clock(given_ms bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(given_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;
