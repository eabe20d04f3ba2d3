"""The decision service: the limits of one store for programs in any language, and for Envoy."""
