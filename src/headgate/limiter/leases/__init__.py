"""What an acquire holds: leases, their renewal, leases that go on elsewhere, and the sweep of those that died."""
