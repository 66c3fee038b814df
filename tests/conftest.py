"""Fixtures that every room's tests share."""

pytest_plugins = ["tailrace.testing.plugin"]
