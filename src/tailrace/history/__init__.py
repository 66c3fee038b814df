"""Which columns a table had at a position, or at a time."""
