"""`headgate demo`: several processes hammer one limit, and none of it is oversold."""
