"""All keys of the table, made and parsed only here.

    what                  PK                                  SK
    entity                {ns}/ENTITY#{id}                    #META
    limits of an entity   {ns}/ENTITY#{id}                    #CONFIG#{resource}   (its default: #CONFIG#_default_)
    limits of a resource  {ns}/RESOURCE#{resource}            #CONFIG
    limits of the system  {ns}/SYSTEM#                        #CONFIG
    revision of limits    {ns}/SYSTEM#                        #REVISION
    buckets with shards   {ns}/BUCKET#                        #SHARDED#{id}#{resource}
    buckets               {ns}/BUCKET#{id}#{resource}#{shard} #STATE
    slots                 {ns}/BUCKET#{id}#{resource}#0       #SLOTS
    hours of a day        {ns}/BUCKET#{id}                    #HOURS#{resource}#{day}
    usage by the stream   {ns}/ENTITY#{id}                    #USAGE#{resource}#{window}#{start}
    audit event           {ns}/AUDIT#                         #AUDIT#{event}
    the same by entity    {ns}/AUDIT#{id}                     #AUDITED#{event}
    any other record      {ns}/RECORD#                        #RECORD#{name}
    namespace             _/SYSTEM#                           #NAMESPACE#{name}
    version of the table  _/SYSTEM#                           #VERSION
    migration             _/SYSTEM#                           #MIGRATION#{number}

`{ns}` is the opaque id of a namespace (namespaces.py). No identifier contains `#`, no namespace `/`.
"""

from __future__ import annotations

from ...core.names import REGISTRY as REGISTRY

DEFAULT = "_default_"  # instead of a resource: no resource starts with an underscore

META = "#META"
STATE = "#STATE"
SLOTS = "#SLOTS"
CONFIG = "#CONFIG"
REVISION = "#REVISION"
VERSION = "#VERSION"

GSI1, GSI2, GSI3, GSI4 = "GSI1", "GSI2", "GSI3", "GSI4"


def pk_system(ns: str) -> str:
    return f"{ns}/SYSTEM#"


def pk_entity(ns: str, entity_id: str) -> str:
    return f"{ns}/ENTITY#{entity_id}"


def pk_resource(ns: str, resource: str) -> str:
    return f"{ns}/RESOURCE#{resource}"


def pk_bucket(ns: str, entity_id: str, resource: str, shard: int) -> str:
    return f"{ns}/BUCKET#{entity_id}#{resource}#{shard}"


def pk_sharded(ns: str) -> str:
    """Not beside the limits of the system: a policy may allow splitting buckets without allowing that."""
    return f"{ns}/BUCKET#"


def pk_hours(ns: str, entity_id: str) -> str:
    """Among the buckets: a policy that allows taking tokens allows moving usage too."""
    return f"{ns}/BUCKET#{entity_id}"


def pk_audit(ns: str, entity_id: str = "") -> str:
    return f"{ns}/AUDIT#{entity_id}"


def pk_record(ns: str) -> str:
    return f"{ns}/RECORD#"


def sk_config(resource: str | None = None) -> str:
    """Of the system or a resource; with a resource (or DEFAULT), of an entity."""
    return CONFIG if resource is None else f"{CONFIG}#{resource}"


def sk_usage(resource: str, window: str, start: str) -> str:
    """`window` is hour, day or month, `start` its first second: windows of different length never share a key."""
    return f"#USAGE#{resource}#{window}#{start}"


def sk_hours(resource: str, day: str) -> str:
    return f"#HOURS#{resource}#{day}"


def sk_audit(event: str) -> str:
    return f"#AUDIT#{event}"


def sk_audited(event: str) -> str:
    return f"#AUDITED#{event}"


def sk_sharded(entity_id: str, resource: str) -> str:
    return f"#SHARDED#{entity_id}#{resource}"


def sk_record(name: str) -> str:
    return f"#RECORD#{name}"


def sk_namespace(name: str) -> str:
    return f"#NAMESPACE#{name}"


def sk_migration_prefix() -> str:
    return "#MIGRATION#"


def sk_migration(number: int) -> str:
    return f"{sk_migration_prefix()}{number}"


# Indexes. GSI1: children of a parent. GSI2: buckets and usage of a resource, all entities, and all limits of entities.
# GSI3: entities with limits of their own on a resource, and buckets of an entity. GSI4: everything of a namespace.


def gsi1_pk(ns: str, parent_id: str) -> str:
    return f"{ns}/PARENT#{parent_id}"


def gsi1_sk(entity_id: str) -> str:
    return f"CHILD#{entity_id}"


def gsi2_pk(ns: str, resource: str) -> str:
    return pk_resource(ns, resource)


def gsi2_sk_bucket(entity_id: str, shard: int) -> str:
    return f"BUCKET#{entity_id}#{shard}"


def gsi2_sk_usage(window: str, start: str, entity_id: str) -> str:
    return f"USAGE#{window}#{start}#{entity_id}"


def gsi2_pk_entities(ns: str) -> str:
    """GSI4 has entities too, but among all usage, which is far more."""
    return f"{ns}/ENTITIES#"


def gsi2_pk_configs(ns: str) -> str:
    return f"{ns}/ENTITY_CONFIGS#"


def gsi2_sk_config(entity_id: str, resource: str) -> str:
    return f"{entity_id}#{resource}"


def gsi3_pk_config(ns: str, resource: str) -> str:
    return f"{ns}/ENTITY_CONFIG#{resource}"


def gsi3_pk_entity(ns: str, entity_id: str) -> str:
    return pk_entity(ns, entity_id)


def gsi3_sk_bucket(resource: str, shard: int) -> str:
    return f"BUCKET#{resource}#{shard}"


def gsi4_sk_slots(ns: str, entity_id: str = "", resource: str = "") -> str:
    """Among the buckets of the namespace, and before all of them: no id begins with #. Without an id, the common
    prefix.
    """
    start = f"{pk_sharded(ns)}#"
    return f"{start}{entity_id}#{resource}" if entity_id else start


def gsi4_sk_hours(ns: str, entity_id: str) -> str:
    """Not among the buckets, whose list would have to skip them."""
    return f"{ns}/HOURS#{entity_id}"


# Parsing


def parse_pk(pk: str) -> tuple[str, str, str]:
    """The namespace id, the kind of key (ENTITY, BUCKET, ...) and the rest."""
    ns, _, rest = pk.partition("/")
    kind, _, rest = rest.partition("#")
    return ns, kind, rest


def parse_bucket_pk(pk: str) -> tuple[str, str, str, int]:
    """The namespace id, entity, resource and shard of a bucket."""
    ns, kind, rest = parse_pk(pk)
    if kind != "BUCKET":
        raise ValueError(f"{pk!r} is not the key of a bucket")
    entity_id, resource, shard = rest.split("#")
    return ns, entity_id, resource, int(shard)
