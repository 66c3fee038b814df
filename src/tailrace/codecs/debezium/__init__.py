"""Debezium's envelope."""
