"""docs/documents.md: what it shows is what the language takes, and it names every word of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from tailrace.config import documents as d
from tailrace.config import load
from tailrace.config.conditions import Op

TEXT = (Path(__file__).parents[2] / "docs/documents.md").read_text()


def test_the_example_loads(tmp_path: Path):
    (example,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    path = tmp_path / "pipeline.yml"
    path.write_text(example)
    users = load(path, {"PASSWORD": "x"}).documents["users"]
    assert users.fields["orders"].fields["products"].through.table == "public.order_items"


@pytest.mark.parametrize(
    "word",
    [
        *(str(each.__struct_config__.tag) for each in get_args(get_args(d.Field)[0])),
        *Op,
        *d.Document.__struct_fields__,
        *d.TextTransform,
    ],
)
def test_every_word_is_explained(word: str):
    assert re.search(rf"`(?:[^`]*\b)?{word}\b[^`]*`", TEXT)
