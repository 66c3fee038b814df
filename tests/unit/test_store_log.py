"""What a log on an object store consists of, by the names of its segments; and how rarely it is asked."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from tailrace.errors import ConfigError, MissingExtra
from tailrace.log.reader import valid
from tailrace.log.segment import SegmentName
from tailrace.spark.datasource import Pace
from tailrace.state import objects, scratch
from tailrace.state.storage import Storage


def segment(first: int, last: int, epoch: int, committed: int | None = None) -> SegmentName:
    return SegmentName(first, last if committed is None else committed, last, epoch)


A, B = segment(1, 10, 1), segment(11, 20, 1)


@pytest.mark.parametrize(
    ("found", "end", "expected"),
    [
        pytest.param([A, B], 20, [A, B], id="one writer"),
        pytest.param([A, B], 10, [A], id="not published yet"),
        pytest.param([A, B], None, [A, B], id="a log from before ends were published"),
        pytest.param([A, B, segment(11, 15, 2)], 15, [A, segment(11, 15, 2)], id="a late writer's, longer"),
        pytest.param([A, B, segment(11, 30, 2)], 30, [A, segment(11, 30, 2)], id="a late writer's, shorter"),
        pytest.param(
            [A, segment(15, 18, 1), segment(11, 16, 2), segment(17, 30, 2)],
            30,
            [A, segment(11, 16, 2), segment(17, 30, 2)],
            id="a late writer's, of an unfinished transaction",
        ),
        pytest.param(
            [segment(1, 10, 1, committed=8), segment(9, 12, 2)],
            12,
            [segment(1, 10, 1, committed=8), segment(9, 12, 2)],
            id="an unfinished tail counts up to its last end",
        ),
        pytest.param([A, B, segment(1, 20, 2)], 20, [segment(1, 20, 2)], id="merged, and not deleted yet"),
        pytest.param(
            [segment(1, 20, 2), segment(21, 30, 1)],
            30,
            [segment(1, 20, 2), segment(21, 30, 1)],
            id="merged, before what an earlier writer wrote",
        ),
    ],
)
def test_each_offset_has_its_last_writers_word(found, end, expected):
    assert valid(reversed(found), None, end) == sorted(expected)


def test_what_lies_before_the_begin_is_nobodys():
    assert valid([A, B, segment(5, 14, 3)], 10, 20) == [B]


def test_a_segments_name_has_the_epoch_of_its_writer():
    for name in (segment(1, 2, 0), segment(1, 2, 7)):
        assert SegmentName.parse(str(name)) == name
    assert str(segment(1, 2, 0)).count("-") == 2, "a local log's names are what they were"


def test_who_finds_nothing_asks_less_often_and_at_once_after_something_came():
    pace = Pace(longest=0.4)
    waits = []
    for _ in range(6):
        pace.went(is_well=False)
        waits.append(pace._wait)
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.4, 0.4]
    pace.went(is_well=True)
    assert pace.is_due()


def test_a_local_disk_is_asked_all_the_time():
    pace = Pace(longest=0.0)
    pace.went(is_well=False)
    assert pace.is_due()


def test_news_are_there_whole_or_not_at_all(tmp_path):
    news = scratch.News(tmp_path / "end")
    assert news.read() is None
    news.write(7)
    assert (news.read(), scratch.News(str(tmp_path / "end")).read()) == (7, 7)
    scratch.News(tmp_path / "nowhere" / "end").write(8)


def test_news_that_can_not_be_written_leave_no_old_ones_behind(tmp_path, monkeypatch):
    news = scratch.News(tmp_path / "end")
    news.write(7)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(scratch, "private", full)
    news.write(8)
    assert news.read() is None


def test_a_run_keeps_spark_s_checkpoints_on_its_own_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    assert scratch.folder(str(tmp_path / "state")) == tmp_path / "state" / "spark"
    away = scratch.folder("s3://key:secret@bucket/state?region=us-east-1")
    assert away.parent == tmp_path / "temporary"
    assert "secret" not in str(away)
    assert away != scratch.folder("s3://bucket/other")
    scratch.begin("s3://bucket/other")
    made = scratch.folder("s3://bucket/other")
    assert made.stat().st_mode & 0o777 == 0o700
    (made / "left behind").write_text("")
    scratch.begin("s3://bucket/other")
    assert list(made.iterdir()) == []
    scratch.end("s3://bucket/other")
    assert not made.exists()


@pytest.mark.parametrize(
    ("url", "address", "config"),
    [
        (
            "s3://key:se%2Fcret@bucket?endpoint_override=127.0.0.1:9000&scheme=http&region=us-east-1",
            "s3://bucket",
            {
                "endpoint": "http://127.0.0.1:9000",
                "region": "us-east-1",
                "access_key_id": "key",
                "secret_access_key": "se/cret",
            },
        ),
        ("s3a://bucket", "s3://bucket", {}),
        ("gs://bucket", "gs://bucket", {}),
        ("abfss://box@account.dfs.core.windows.net", "abfss://box@account.dfs.core.windows.net", {}),
    ],
)
def test_an_address_is_a_bucket_and_how_to_get_there(url, address, config):
    assert objects._settings(url)[:2] == (address, config)


def test_a_setting_that_no_store_has_is_one_clear_sentence():
    storage = Storage("s3://bucket/state?colour=red")
    with pytest.raises(ConfigError, match=r"s3://bucket can not be a state directory: .*colour"):
        storage.exists()


def test_without_its_library_it_is_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tailrace\[store\]'"):
        Storage("s3://a-bucket/state").sizes(".json")


class Unreplacing:
    """A file system that moves nothing over what is there: HDFS."""

    def __init__(self, real: object) -> None:
        self._real = real

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def move(self, path: str, to: str) -> None:
        if self._real.get_file_info(to).type.name == "File":  # type: ignore[attr-defined]
            raise OSError("it exists")
        self._real.move(path, to)  # type: ignore[attr-defined]


def test_a_note_is_replaced_where_a_move_does_not_replace(tmp_path: Path):
    storage = Storage("mock:///state")
    storage.create()
    storage.filesystem = Unreplacing(storage.filesystem)
    storage.publish("a.json", b"1")
    storage.publish("a.json", b"2")
    assert (storage.read("a.json"), storage.sizes("")) == (b"2", {"a.json": 1})
