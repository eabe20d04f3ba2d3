"""The handlers of the pages."""

from . import buckets, entities, entity, limits, login, namespaces, overview

__all__ = ["buckets", "entities", "entity", "limits", "login", "namespaces", "overview"]
