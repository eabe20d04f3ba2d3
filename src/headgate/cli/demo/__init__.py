"""`headgate demo`: several processes use the same limits at full speed, and none is oversold."""
