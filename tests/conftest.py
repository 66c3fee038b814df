"""Fixtures that every room's tests share."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["tailrace.testing.plugin"]

# on a busy machine an example takes as long as it takes
settings.register_profile("tailrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tailrace")
