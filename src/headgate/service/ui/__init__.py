"""The dashboard: pages about a store, for people. They work without scripts, and without the internet."""
