"""The committed files of a folder at one moment, for those to whom a listing is not enough.

A listing has committed files only, and may have some of a commit's without the others for an instant, or until the next
run after a crash. Here a commit is whole.
"""

from __future__ import annotations

from pathlib import Path

from tailrace.sinks.files.manifest import decoded
from tailrace.sinks.files.naming import MANIFEST, OWN, STAGED, data_files


def committed(folder: str | Path) -> dict[str, list[Path]]:
    """Files by the folder of their table, in the order of their commits.

    A file of the last commit may be on its way: who finds it gone when it is opened asks again.
    """
    root = Path(folder)
    before = _manifests(root)
    while True:
        found = {path: path for path in data_files(root)}
        for place, data in before.items():
            for each in decoded(data, place).files:
                staged = place / STAGED / each.staged
                if root / each.path not in found and staged.exists():
                    found[root / each.path] = staged
        after = _manifests(root)
        if after == before:
            return _by_table(found)
        before = after


def _manifests(root: Path) -> dict[Path, bytes]:
    """Every commit writes one: while they are the same, nobody has committed."""
    return {path.parent: path.read_bytes() for path in root.glob(f"{OWN}/*/*/{MANIFEST}")}


def _by_table(found: dict[Path, Path]) -> dict[str, list[Path]]:
    tables: dict[str, list[Path]] = {}
    for final in sorted(found, key=lambda path: path.name):
        tables.setdefault(final.parts[-3], []).append(found[final])
    return tables
