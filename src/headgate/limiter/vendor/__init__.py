"""Sharing a vendor's quota: dimensions by name, and what the vendor's own headers say."""
