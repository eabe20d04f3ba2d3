"""What the rows of the tables on PostgreSQL are called."""

BARE = "psycopg"  # how the rows begin that are no limiter
LEAST_ROW = f"{BARE} function, reads and writes a row"
