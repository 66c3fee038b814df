"""`tailrace checkpoint`: what it prints, what it refuses, and what it leaves in the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.checkpoints import open_store
from tailrace.cli.main import main
from tailrace.model.checkpoint import Checkpoint, TableCopy
from tailrace.model.chunk import Chunk
from tailrace.testing.checkpoint_contract import ORDERS, SERVER, at

LATE = ["--position", "0/20"]


@pytest.fixture(params=["folder", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "places") if request.param == "folder" else f"sqlite:///{tmp_path}/mine.db"


@pytest.fixture
def kept(place: str) -> str:
    """Has `orders`, in the middle of all that there is."""
    copies = (TableCopy(ORDERS, (Chunk("public.orders", 1, 9),), rows=1700),)
    with open_store(place) as store:
        store.claim("orders")
        store.save("orders", at(16, events=1234, skip=3, transaction="744", copies=copies, metadata={"by": "me"}))
    return place


def loaded(place: str) -> Checkpoint | None:
    with open_store(place) as store:
        return store.load("orders")


def test_list_prints_a_line_each(kept, capsys):
    assert main(["checkpoint", "list", kept]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:4] for line in lines] == [
        ["name", "kind", "position", "events"],
        ["orders", "postgresql", "0/10", "1,234"],
    ]


def test_list_of_nothing_says_so_and_makes_nothing(tmp_path, capsys):
    assert main(["checkpoint", "list", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == "there are no checkpoints\n"
    assert not list(tmp_path.iterdir())


def test_list_tells_of_a_damaged_one_and_goes_on(tmp_path, capsys):
    with open_store(tmp_path) as store:
        for name in ("a", "b"):
            store.claim(name)
            store.save(name, at(7))
    (tmp_path / "a.json").write_bytes(b"{")
    assert main(["checkpoint", "list", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "refused: checkpoint a is damaged" in out
    assert "0/7" in out


def test_show_prints_all_that_one_says(kept, capsys):
    assert main(["checkpoint", "show", kept, "orders"]) == 0
    out = capsys.readouterr().out
    for words in ("0/10", "1,234", "3 events of transaction 744", "7301", "shop (5)", "tailrace_shop", "by", "me"):
        assert words in out
    assert "public.orders: 1,700 rows, 1 chunks left" in out


def test_show_as_json_is_the_checkpoint(kept, capsys):
    assert main(["checkpoint", "show", kept, "orders", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["position"] == "0/10"


@pytest.mark.parametrize("action", ["show", "delete"])
def test_one_that_is_not_there_is_wrong_use(action, place, capsys):
    assert main(["checkpoint", action, place, "orders"]) == 2
    assert "error: there is no checkpoint orders\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "position", "written"),
    [
        ("postgresql", "16/b374d848", "16/B374D848"),
        ("postgres", "0/1", "0/1"),
        ("mysql", "binlog.000042:1337", "binlog.000042:1337"),
        ("mysql", "3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"),
        ("mariadb", "0-1-100", "0-1-100"),
    ],
)
def test_seed_puts_a_position_there(kind, position, written, place, capsys):
    assert main(["checkpoint", "seed", place, "orders", "--kind", kind, "--position", position, "--events", "7"]) == 0
    assert capsys.readouterr().out == f"seeded orders at {written}\n"
    found = loaded(place)
    assert found is not None
    assert (found.position, found.events, found.source) == (written, 7, None)
    assert found.kind in (kind, "postgresql")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--kind", "postgresql", "--position", "seven"], "'seven' is no position of a postgresql source"),
        (["--kind", "postgresql", "--position", "0/0"], "'0/0' is no position"),
        (["--kind", "mysql", "--position", "0-1-100"], "'0-1-100' is no position of a mysql source"),
        (["--kind", "postgrsql", "--position", "0/1"], "no source is of the kind postgrsql"),
        (["--position", "0/1"], "--kind is missing"),
    ],
)
def test_seed_refuses_what_is_no_position(arguments, why, place, capsys):
    assert main(["checkpoint", "seed", place, "orders", *arguments]) == 2
    assert why in capsys.readouterr().err
    assert loaded(place) is None


def test_seed_leaves_one_that_is_there(kept, capsys):
    before = loaded(kept)
    assert main(["checkpoint", "seed", kept, "orders", *LATE]) == 1
    assert "error: checkpoint orders is there already, at 0/10\nhint: --replace" in capsys.readouterr().err
    assert loaded(kept) == before


@pytest.mark.parametrize("position", ["0/20", "0/5"])
def test_seed_replaces_one_if_it_is_told_to_and_keeps_whose_it_is(position, kept):
    assert main(["checkpoint", "seed", kept, "orders", "--position", position, "--replace"]) == 0
    assert loaded(kept) == Checkpoint("postgresql", position, 1234, SERVER, metadata={"by": "me"})


def test_seed_of_another_kind_forgets_the_source(kept):
    new = ["--kind", "mysql", "--position", "binlog.000001:4", "--events", "0", "--replace"]
    assert main(["checkpoint", "seed", kept, "orders", *new]) == 0
    assert loaded(kept) == Checkpoint("mysql", "binlog.000001:4", 0, metadata={"by": "me"})


def test_delete_forgets_one(kept, capsys):
    assert main(["checkpoint", "delete", kept, "orders"]) == 0
    assert capsys.readouterr().out == "deleted orders\n"
    assert loaded(kept) is None


def test_delete_forgets_a_damaged_one(tmp_path):
    (tmp_path / "orders.json").write_bytes(b"{")
    assert main(["checkpoint", "delete", str(tmp_path), "orders"]) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("action", [["seed", *LATE, "--replace"], ["delete"]])
def test_nothing_is_done_while_a_stream_has_it(action, kept, capsys):
    before = loaded(kept)
    with open_store(kept) as store:
        store.claim("orders")
        assert main(["checkpoint", action[0], kept, "orders", *action[1:]]) == 1
        assert "error: checkpoint orders is held by pid" in capsys.readouterr().err
    assert loaded(kept) == before


def test_a_name_that_can_not_be_is_wrong_use(place, capsys):
    assert main(["checkpoint", "show", place, "a/b"]) == 2
    assert "can not be the name of a checkpoint" in capsys.readouterr().err
