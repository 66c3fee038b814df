"""Rows that a database can not take: found before they are sent, or when it refuses them."""
