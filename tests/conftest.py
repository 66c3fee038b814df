"""Fixtures that every room's tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tailrace.testing.plugin",
    "support.mysql_fixtures",
    "support.mysql_sources",
    "support.opensearch_fixtures",
    "support.kafka_fixtures",
]

# Python processes that a test starts find `support`, too
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))

# on a busy machine an example takes as long as it takes
settings.register_profile("tailrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tailrace")

LONGEST_FIRST = ("cluster", "crash", "seams", "databases", "spark", "property", "unit")
"""Rooms whose tests need the processor: those whose files take longest come first."""
WAITING = "contract"
"""A room whose tests wait for servers half of the time: a worker that has one leaves the processor to two others."""


SECONDS = ("mariadb", "overaconnectiontosqlite")


def is_for_contract_only(item: pytest.Item) -> bool:
    """What is another's in nearly all of its code, and whose suites take as long: `make contract` has them."""
    return "contract" in item.path.parts and any(name in item.nodeid.lower() for name in SECONDS)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not os.environ.get("TAILRACE_CONTRACT"):
        config.hook.pytest_deselected(items=[item for item in items if is_for_contract_only(item)])
        items[:] = [item for item in items if not is_for_contract_only(item)]
    in_order(items)


def in_order(items: list[pytest.Item]) -> None:
    """For workers that take a file each (`--dist=loadfile --no-loadscope-reorder`)."""
    rooms = {room: place for place, room in enumerate(LONGEST_FIRST)}
    here = Path(__file__).parent
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path.relative_to(here), []).append(item)
    waiting = sorted((file for file in files if file.parts[0] == WAITING), key=lambda file: -len(files[file]))
    working = sorted(files.keys() - waiting, key=lambda file: (rooms.get(file.parts[0], len(rooms)), file))
    order = [file for place in range(0, len(working), 2) for file in (*waiting[place // 2 :][:1], *working[place:][:2])]
    order += waiting[(len(working) + 1) // 2 :]
    items[:] = [item for file in order for item in files[file]]
