"""Envoy's rate limit service v3: Envoy asks with descriptors, rules say which limits they fall under."""
