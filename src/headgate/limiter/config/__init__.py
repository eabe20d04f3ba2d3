"""What is stored about limits: levels, entities, namespaces, and the cache of what was read."""
