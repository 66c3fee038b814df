"""Fixtures that every room's tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tailrace.testing.plugin", "support.mysql_fixtures"]

# Python processes that a test starts find `support`, too
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))

# on a busy machine an example takes as long as it takes
settings.register_profile("tailrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tailrace")

LONGEST_FIRST = ("cluster", "crash", "seams", "databases", "spark", "contract", "property", "unit")
"""Rooms whose files take longest come first, so that no worker is left alone with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rooms = {room: place for place, room in enumerate(LONGEST_FIRST)}
    here = Path(__file__).parent
    items.sort(key=lambda item: rooms.get(item.path.relative_to(here).parts[0], len(rooms)))
