"""The results: their names and targets, the table on the terminal, `results.json`, and a plot where matplotlib is."""

import json
import operator
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

COMPARE: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, ">": operator.gt, "<": operator.lt}


class Target(msgspec.Struct, frozen=True):
    """What a figure should be. Without a limit it is only reported."""

    unit: str
    comparison: str = ">="
    limit: float | None = None

    def is_met(self, value: float | None) -> bool | None:
        if self.limit is None:
            return None
        return value is not None and COMPARE[self.comparison](value, self.limit)


TARGETS = {
    "capture_vs_pg_recvlogical": Target("ratio", ">=", 0.9),
    "decode_changes_per_second": Target("changes/s", ">=", 1_500_000),
    "embedded_arrow_vs_capture": Target("ratio", ">=", 0.9),
    "embedded_arrow_vs_psycopg": Target("ratio"),
    "embedded_events_vs_debezium": Target("ratio", ">=", 3),
    "embedded_arrow_changes_per_second": Target("changes/s"),
    "embedded_events_per_second": Target("events/s"),
    "sqlite_vs_debezium": Target("ratio", ">=", 2),
    "snapshot_vs_copy": Target("ratio", ">=", 0.8),
    "snapshot_vs_binary_copy": Target("ratio"),
    "snapshot_sqlite_vs_executemany": Target("ratio", ">=", 0.7),
    "latency_p50_seconds": Target("seconds", "<", 0.6),
    "latency_p95_seconds": Target("seconds"),
    "latency_p99_seconds": Target("seconds"),
    "capture_peak_megabytes": Target("megabytes", "<", 300),
    "postgres_vs_debezium": Target("ratio", ">=", 2),
    "postgres_vs_null": Target("ratio", ">=", 0.5),
    "snapshot_postgres_vs_psql_copy": Target("ratio", ">=", 0.6),
    "snapshot_postgres_vs_subscription": Target("ratio", ">", 1),
    "mysql_capture_vs_mysqlbinlog": Target("ratio", ">=", 0.8),
    "binlog_decode_changes_per_second": Target("changes/s", ">=", 800_000),
    "binlog_decode_one_row_events_per_second": Target("changes/s"),
    "mysql_sqlite_vs_debezium": Target("ratio", ">=", 3),
    "mariadb_sqlite_vs_debezium": Target("ratio", ">=", 3),
    "mysql_snapshot_vs_debezium": Target("ratio", ">=", 5),
    "mysql_snapshot_vs_client": Target("ratio", ">=", 0.8),
    "mysql_snapshot_vs_mysqldump": Target("ratio"),
    "mysql_vs_bulk_load": Target("ratio", ">=", 0.6),
    "mariadb_vs_bulk_load": Target("ratio", ">=", 0.6),
    "transforms_vs_direct": Target("ratio"),
    "documents_seed_per_second": Target("documents/s"),
    "documents_seed_vs_bulk": Target("ratio", ">=", 0.5),
    "documents_change_per_second": Target("changes/s"),
    "documents_latency_p50_seconds": Target("seconds"),
    "kafka_vs_debezium": Target("ratio", ">=", 3),
    "kafka_vs_producer": Target("ratio", ">=", 0.5),
    "kafka_commit_vs_producer": Target("ratio"),
    "kafka_latency_p50_seconds": Target("seconds"),
    "kafka_latency_p99_seconds": Target("seconds"),
    "start_seconds": Target("seconds", "<", 5),
    "restart_seconds": Target("seconds", "<", 8),
}


class Result(msgspec.Struct):
    """One figure as it stands in results.json. `met` is null where there is no target."""

    name: str
    value: float | None
    unit: str
    target: float | None
    met: bool | None
    details: dict[str, object]


def result(name: str, value: float | None, details: dict[str, object]) -> Result:
    target = TARGETS[name]
    rounded = None if value is None else float(f"{value:.4g}")
    return Result(name, rounded, target.unit, target.limit, target.is_met(value), details)


def print_table(results: Sequence[Result], console: Console) -> None:
    table = Table("benchmark", "value", "target", "met", "measured")
    for each in results:
        target = TARGETS[each.name]
        wanted = "" if target.limit is None else f"{target.comparison} {_number(target.limit)} {target.unit}"
        met = "" if each.met is None else "yes" if each.met else "[red]no[/red]"
        table.add_row(each.name, _number(each.value), wanted, met, _summary(each.details))
    console.print(table)


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _summary(details: dict[str, object]) -> str:
    """A line a contender: its rate, or why it has none."""
    lines = []
    for name, heat in details.items():
        if isinstance(heat, dict) and "best_per_second" in heat:
            lines.append(f"{name} {heat['best_per_second']:,}/s")
        elif isinstance(heat, dict) and heat.get("problem"):
            lines.append(f"{name}: {escape(str(heat['problem']).splitlines()[0][:60])}")
    return "\n".join(lines)


def write_json(results: Sequence[Result], path: Path) -> list[Result]:
    """Write the results, keeping the file's earlier figures for what was not measured this time; return all of them."""
    earlier = msgspec.json.decode(path.read_bytes(), type=list[Result]) if path.exists() else []
    known = {each.name: each for each in [*earlier, *results]}
    merged = [known[name] for name in TARGETS if name in known]
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(msgspec.to_builtins(merged), indent=2) + "\n")
    beside.replace(path)
    return merged


def draw(results: Sequence[Result], path: Path) -> bool:
    """Each figure as a part of its target (for a limit from above: the target as a part of it); 1 is the line."""
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found]  # optional
    except ImportError:
        return False
    bars = [(each.name, _score(each)) for each in results if each.value and each.target]
    figure = Figure(figsize=(9, 0.5 * len(bars) + 1), layout="constrained")
    axes = figure.subplots()
    axes.barh([name for name, _ in bars], [score for _, score in bars])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("value ÷ target (1 = met)")
    figure.savefig(path, dpi=120)
    return True


def _score(each: Result) -> float:
    assert each.value
    assert each.target
    return each.target / each.value if TARGETS[each.name].comparison == "<" else each.value / each.target
