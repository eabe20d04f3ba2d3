"""The schema: what `setup` makes, and the two numbers that tell clients whether it is theirs.

Each file of migrations/ is one step, done once, in order. Tables of another version are nobody else's; one that older
clients need not know of is made with the functions. Functions of a
later revision take the same arguments and give the same replies, so that older clients go on with them: an upgrade is
`setup`, and then the clients one by one.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

VERSION = 1  # of the last file in migrations/
FUNCTIONS = 3  # whoever changes what a function does adds one; whoever changes how it is called adds a migration
_FUNCTIONS = ("clock", "queue", "slots", "usage", "settle", "take", "records", "removal")

# All in one transaction. Of several who begin at once, the others find it done.
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
    """What makes tables that are there already the kind that is wanted: nothing, if they are."""
    if unlogged is None:
        return ""
    kind = "UNLOGGED" if unlogged else "LOGGED"
    return "".join(f"ALTER TABLE headgate.{table} SET {kind};\n" for table in _TABLES)


def _logged(sql: str, unlogged: bool | None) -> str:
    return sql if unlogged else sql.replace("CREATE UNLOGGED TABLE", "CREATE TABLE")


@lru_cache
def _text(folder: str, name: str) -> str:
    return (files(__package__) / folder / f"{name}.sql").read_text()
