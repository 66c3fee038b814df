"""Connectors have all that their contract names: nothing is left to the empty methods of a protocol."""

from __future__ import annotations

import pytest

from tailrace import registry
from tailrace.sinks.base import Sink
from tailrace.sources.base import Source
from tailrace.testing.source_changes import missing


@pytest.mark.parametrize("scheme", registry.schemes(registry.SOURCES))
def test_a_source_has_every_method_of_its_contract(scheme: str) -> None:
    assert missing(registry.source_class(f"{scheme}://h"), Source) == set()


@pytest.mark.parametrize("scheme", registry.schemes(registry.SINKS))
def test_a_sink_has_every_method_of_its_contract(scheme: str) -> None:
    assert missing(registry.sink_class(f"{scheme}://h"), Sink) == {"name"}  # which each object has for itself
