"""YAML and TOML files that people write, read so that each mistake is reported with its file and line."""

from .document import MAX_BYTES, Document, DocumentError, Node, read_document

__all__ = ["MAX_BYTES", "Document", "DocumentError", "Node", "read_document"]
