"""The sink contract as a test suite: every sink of a SQL database passes it, whoever wrote the sink.

Subclass `SinkContract` in a test module and give it four fixtures:

- `make_sink`: a function of a pipeline's name that makes a sink; all sinks of a test write to one fresh database;
- `rows`: a function of a table schema that reads the table back through a connection of its own;
- `inventory`: a function without arguments that lists everything there is of the sink, tables and scratch files alike;
- `expected_values`: what the documented mapping makes of `sample_values.SAMPLES`, by name, as `rows` reads them.

A gap is an override marked `xfail(strict=True)` with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.sinks.base import DatabaseSink
from tailrace.testing.sink_changes import MakeSink
from tailrace.testing.sink_contract_commits import CommitsContract
from tailrace.testing.sink_contract_evolution import EvolutionContract
from tailrace.testing.sink_contract_rows import RowsContract
from tailrace.testing.sink_contract_snapshots import SnapshotsContract
from tailrace.testing.sink_contract_values import ValuesContract


class SinkContract(RowsContract, ValuesContract, CommitsContract, SnapshotsContract, EvolutionContract):
    """All of it."""

    @pytest.fixture
    def sink(self, make_sink: MakeSink) -> Iterator[DatabaseSink]:
        sink = make_sink()
        yield sink
        sink.close()
