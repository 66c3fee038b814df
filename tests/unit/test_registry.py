"""Connectors by URL scheme."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from tailrace import registry
from tailrace.errors import ConfigError, MissingExtra


@pytest.fixture
def entry(monkeypatch):
    """Register one connector, as an installed package would."""

    def entry(name: str, value: str) -> None:
        def entry_points(group: str, **wanted: str) -> list[EntryPoint]:
            found = EntryPoint(name, value, group)
            return [found] if wanted.get("name", name) == name else []

        monkeypatch.setattr(registry, "entry_points", entry_points)

    return entry


def test_the_built_in_connectors_are_registered():
    assert {"postgresql", "postgres"} <= set(registry.schemes(registry.SOURCES))
    assert "sqlite" in registry.schemes(registry.SINKS)


def test_somebody_else_s_connector_is_found(entry):
    entry("made", "collections:Counter")
    assert registry.sink_class("made://up").__name__ == "Counter"


def test_an_unknown_scheme_lists_the_known_ones():
    with pytest.raises(ConfigError, match="no sink is known for oracle:// URLs") as caught:
        registry.sink_class("oracle://u:secret@h/d")
    assert "sqlite://" in (caught.value.hint or "")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("scheme", "extra"), [("kafka", "kafka"), ("mariadb", "mysql")])
def test_a_missing_driver_is_the_pip_command(entry, scheme, extra):
    entry(scheme, "no_such_driver_anywhere:Sink")
    with pytest.raises(MissingExtra) as caught:
        registry.sink_class(f"{scheme}://h")
    assert str(caught.value) == f"pip install 'tailrace[{extra}]'"


def test_a_module_of_our_own_that_is_missing_is_no_missing_extra(entry):
    entry("broken", "tailrace.sinks.no_such_module:Sink")
    with pytest.raises(ModuleNotFoundError):
        registry.sink_class("broken://h")
