"""Fixtures that every room's tests share."""

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

pytest_plugins = ["tailrace.testing.plugin", "support.mysql_fixtures"]

# Python processes that a test starts find `support`, too
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))

# on a busy machine an example takes as long as it takes
settings.register_profile("tailrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tailrace")
