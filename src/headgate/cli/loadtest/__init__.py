"""`headgate loadtest`: how many decisions a second, how fast each, and none of it oversold."""
