"""The schema: what `setup` creates, and the two numbers by which clients recognize it.

Each file of migrations/ is one step, done once, in order. Clients use only tables of their own version. A table that
older clients need not know is created with the functions. Functions of a later revision take the same arguments and
give the same replies, so that older clients can use them: to upgrade, run `setup`, and then upgrade the clients one by
one.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

VERSION = 1  # of the last file in migrations/
FUNCTIONS = 4  # add one to change what a function does; add a migration to change how it is called
_FUNCTIONS = ("clock", "queue", "slots", "usage", "quota", "settle", "take", "records", "removal")

# All in one transaction. When several clients start at once, one does it, and the others find it done.
_SCRIPT = """
SELECT pg_advisory_xact_lock(hashtext('headgate.setup'));
DO $headgate$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = '{schema}') THEN
    CREATE SCHEMA "{schema}";
  END IF;
END
$headgate$;
CREATE TABLE IF NOT EXISTS headgate.version (version integer PRIMARY KEY, done_at timestamptz NOT NULL DEFAULT now());
ALTER TABLE headgate.version ADD COLUMN IF NOT EXISTS functions integer NOT NULL DEFAULT 1;
DO $headgate$
DECLARE
  found integer := coalesce((SELECT max(version) FROM headgate.version), 0);
BEGIN
  IF found > {version} THEN
    RAISE EXCEPTION USING ERRCODE = 'HG426', MESSAGE = found::text;
  END IF;
{steps}
  IF found < {version} OR (SELECT max(functions) FROM headgate.version) < {revision} THEN
    EXECUTE $functions${functions}$functions$;
    UPDATE headgate.version SET functions = {revision};
  END IF;
END
$headgate$;
"""
_STEP = """
  IF found < {number} THEN
    EXECUTE $step${sql}$step$;
    INSERT INTO headgate.version (version) VALUES ({number});
  END IF;
"""
_TABLES = ("buckets", "slots")


def setup_script(schema: str, *, unlogged: bool | None) -> str:
    steps = "".join(
        _STEP.format(number=number, sql=_logged(_text("migrations", f"{number:04}"), unlogged))
        for number in range(1, VERSION + 1)
    )
    functions = "\n".join(_text("functions", name) for name in _FUNCTIONS)
    script = _SCRIPT.format(schema=schema, version=VERSION, steps=steps, revision=FUNCTIONS, functions=functions)
    return script + persistence_script(unlogged)


def persistence_script(unlogged: bool | None) -> str:
    """Makes existing tables logged or unlogged; empty if they stay as they are."""
    if unlogged is None:
        return ""
    kind = "UNLOGGED" if unlogged else "LOGGED"
    return "".join(f"ALTER TABLE headgate.{table} SET {kind};\n" for table in _TABLES)


def _logged(sql: str, unlogged: bool | None) -> str:
    return sql if unlogged else sql.replace("CREATE UNLOGGED TABLE", "CREATE TABLE")


@lru_cache
def _text(folder: str, name: str) -> str:
    return (files(__package__) / folder / f"{name}.sql").read_text()
