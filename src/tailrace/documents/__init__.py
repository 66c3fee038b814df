"""Documents made of tables: described once, built in bulk, kept right. Knows no database, no engine, no sink."""
