"""The end of the demo: what was measured, in few words."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from tailrace.demo.lag import quantile
from tailrace.demo.side import Side
from tailrace.testing.content import Difference


class Facts(msgspec.Struct):
    """What the story has seen, gathered on the way. Times are in seconds."""

    source: str = "PostgreSQL"
    loaded: int = 0
    changes: int = 0
    runs: int = 0
    copied_after: float = 0.0
    killed_after: float = 0.0
    missing_at_kill: int = 0
    running_after: float = 0.0
    back_after: float = 0.0
    compared_after: float = 0.0
    waits: list[float] = []
    longest_wait: float = 0.0
    rows: dict[str, tuple[int, int]] = {}
    differences: list[Difference] = []


def render(facts: Facts) -> RenderableType:
    parts: list[RenderableType] = [Text(), _rows(facts), Text(), _story(facts), Text()]
    if facts.differences:
        return Group(*parts, Text("NOT identical:", "bold red"), *(Text(f"  {each}") for each in facts.differences))
    total = sum(source for source, _ in facts.rows.values())
    verdict = f"identical: every column of all {total:,} rows, compared in {facts.compared_after:.1f} s"
    return Group(*parts, Text(verdict, "bold green"))


def how_to_look(folder: Path, side: Side) -> Text:
    """Commands for what `--keep` left. The server ended with the demo, so one of them starts it again."""
    return Text(
        f"\nkept in {folder}; delete it when you have seen enough:\n"
        f"  sqlite3 {folder / 'replica.db'}\n"
        f"  tailrace status {folder / 'pipeline.yml'}\n"
        f"{side.name} has ended with the demo. To start it again, to look into it, to end it:\n"
        f"{side.how_to_look()}"
    )


def _rows(facts: Facts) -> Text:
    differing = {each.table.rpartition(".")[2] for each in facts.differences}
    text = Text.assemble((f"{'table':<12}{facts.source.split()[0]:>12}{'SQLite':>12}   content", "bold"))
    for name, (source, sink) in facts.rows.items():
        verdict = ("differs", "bold red") if name in differing else ("identical", "green")
        text.append(f"\n{name:<12}{source:>12,}{sink:>12,}   ").append(*verdict)
    return text


def _story(facts: Facts) -> Text:
    lines = {
        "workload": f"{facts.changes:,} changes committed, from before the copy until after the restart",
        "copy": f"{facts.loaded:,} rows and what changed meanwhile: live {facts.copied_after:.1f} s after the start",
        "kill": f"SIGKILL after {facts.killed_after:.1f} s live, {facts.missing_at_kill} committed orders on their way",
        "restart": f"running {facts.running_after:.1f} s and current {facts.back_after:.1f} s after the kill;"
        f" no order waited longer than {facts.longest_wait:.1f} s",
        "lag": _lag(facts),
    }
    return Text("\n").join(Text.assemble((f"{name:<10}", "bold"), line) for name, line in lines.items())


def _lag(facts: Facts) -> str:
    waits = facts.waits
    if not waits:
        return "not measured: no order was placed while the pipeline was live"
    return (
        f"p50 {quantile(waits, 0.5):.2f} s, p95 {quantile(waits, 0.95):.2f} s from commit to readable in SQLite,"
        f" by {len(waits):,} orders"
    )
