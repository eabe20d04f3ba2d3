"""Envoy's rate limit service v3: Envoy sends descriptors, and rules say which limits apply to them."""
