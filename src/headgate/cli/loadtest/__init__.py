"""`headgate loadtest`: decisions per second, their latency, and whether a limit is oversold."""
