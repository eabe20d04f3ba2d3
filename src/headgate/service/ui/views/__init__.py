"""What is on the pages."""

from . import audit, buckets, entities, entity, limits, login, namespaces, overview

__all__ = ["audit", "buckets", "entities", "entity", "limits", "login", "namespaces", "overview"]
