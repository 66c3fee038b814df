"""rustcdc's tests of its file checkpoint and of its lease (dd583d5), answered by name: on real files and processes.

In src/checkpoint/mod.rs, src/checkpoint/owner_lease.rs and tests/checkpoint_file_integration.rs. Those of the barrier
are about acknowledgements, which a stream has here, and not a store.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest

from support.seeds import answered, answers
from tailrace.checkpoints import FileStore, MemoryStore, open_store
from tailrace.cli.main import main
from tailrace.errors import CheckpointRefused, CheckpointTaken, ConfigError, Misuse, StateError
from tailrace.model.checkpoint import Checkpoint, TableCopy
from tailrace.model.chunk import Chunk
from tailrace.model.positions import Order, compare, parse
from tailrace.testing.checkpoint_contract import ORDERS, SERVER, at, child, save_always

THEIRS = {
    # src/checkpoint/mod.rs
    *("a_custom_sources_non_json_offset_still_yields_a_usable_record", "mysql_offset_decodes_from_bytes"),
    *("a_built_in_sources_non_json_offset_is_refused_with_a_named_reason", "in_memory_checkpoint_round_trips_offsets"),
    *("the_advertised_scope_matches_what_the_guard_actually_compares", "file_checkpoint_round_trips_offsets"),
    *("a_temp_file_orphaned_by_a_crash_is_discarded_on_the_next_lease", "file_checkpoint_rejects_missing_directory"),
    *("mariadb_offset_checkpoints_under_its_own_source_type", "file_checkpoint_rejects_corrupt_json"),
    "file_checkpoint_rejects_mixed_source_types_in_single_directory",
    "corrupted_checkpoint_offset_is_rejected_rather_than_silently_resumed",
    "checkpoint_without_a_checksum_is_rejected_with_a_legible_error",
    "round_trip_and_seeded_checkpoints_both_pass_the_integrity_check",
    "file_checkpoint_allows_snapshot_and_stream_variants_in_single_directory",
    *("file_checkpoint_writes_current_format_version", "file_checkpoint_rejects_record_without_explicit_version"),
    *("file_checkpoint_rejects_unknown_record_version", "file_checkpoint_rejects_non_monotonic_committed_count"),
    "file_checkpoint_rejects_a_rewound_stream_position_while_the_count_advances",
    "a_postgres_checkpoint_may_move_backwards_because_pgoutput_legitimately_does",
    *("a_postgres_lsn_of_zero_is_still_caught", "a_binlog_position_of_zero_is_caught_as_a_regression"),
    "binlog_files_are_ordered_by_sequence_number_not_by_text",
    "a_gtid_positioned_stream_is_not_judged_on_server_local_coordinates",
    *("a_renamed_replication_slot_is_not_comparable", "an_unrecognised_source_type_is_left_alone"),
    "file_checkpoint_rejects_conflicting_equal_count_offset",
    "file_checkpoint_rejects_owner_lease_conflict_from_live_pid",
    "file_checkpoint_recovers_from_stale_owner_lease_of_dead_process",
    "a_second_file_checkpoint_on_the_same_directory_is_refused",
    # src/checkpoint/owner_lease.rs
    *("format_and_parse_round_trip", "parse_rejects_old_pid_only_format", "parse_handles_hostname_with_dots"),
    *("parse_handles_hostname_with_hyphens", "parse_rejects_empty", "acquire_creates_new_lease"),
    *("dropping_the_lease_removes_the_sentinel_file", "acquire_refuses_live_pid_lease"),
    *("acquire_clears_stale_dead_pid_lease", "acquire_winner_path_exercises_post_rename_check"),
    "post_rename_check_predicate_accepts_own_pid_rejects_foreign",
    *("decrementing_past_zero_is_a_no_op", "a_second_instance_in_this_process_is_refused"),
    *("a_rejected_acquire_does_not_poison_the_path", "verify_still_held_detects_a_stolen_or_deleted_lease"),
    # tests/checkpoint_file_integration.rs
    *("file_checkpoint_survives_checkpoint_store_restart", "a_read_only_handle_inspects_a_directory_a_writer_owns"),
    "incremental_snapshot_cursors_survive_a_checkpoint_round_trip",
    *("a_checkpoint_without_snapshot_progress_is_a_clean_fresh_start", "a_read_only_handle_refuses_to_write"),
    "a_second_writable_handle_is_still_refused",
}
OF_SQL_SERVER = {
    "a_sqlserver_cursor_regression_is_caught_across_both_encodings",
    "the_two_sqlserver_cursor_encodings_do_not_look_like_a_regression_at_one_lsn",
    "the_current_object_form_round_trips",
    "a_pre_0_8_bare_string_checkpoint_still_loads",
    "incremental_snapshot_state_survives_the_object_form",
    "genuinely_malformed_bytes_report_the_object_form_error",
}
"""Not answered yet: there is no such source."""

GTIDS = "3E11FA47-71CA-11E1-9E33-C80AA9429562:1-{}"


@pytest.fixture
def store(tmp_path: Path):
    with FileStore(tmp_path) as store:
        store.claim("orders")
        yield store


def rewritten(file: Path, **changes: object) -> None:
    """The record with other fields; None takes one away."""
    fields = json.loads(file.read_bytes()) | changes
    file.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))


def refused(store: FileStore, new: Checkpoint, why: str) -> None:
    present = store.load("orders")
    with pytest.raises(CheckpointRefused, match=why):
        store.save("orders", new)
    assert store.load("orders") == present


def test_every_test_of_theirs_is_answered():
    assert sorted(answered(globals())) == sorted(THEIRS)
    assert not THEIRS & OF_SQL_SERVER


# --- offsets -----------------------------------------------------------------------------------------------------


@answers("in_memory_checkpoint_round_trips_offsets")
def test_a_store_in_memory_gives_back_what_it_was_given():
    with MemoryStore() as store:
        store.claim("orders")
        store.save("orders", at(42, events=7))
        assert store.load("orders") == at(42, events=7)


@answers("file_checkpoint_round_trips_offsets")
def test_a_file_gives_back_what_it_was_given(store):
    store.save("orders", at(99, events=11))
    assert store.load("orders") == at(99, events=11)


@answers("mysql_offset_decodes_from_bytes")
@pytest.mark.parametrize(("kind", "text"), [("mysql", "mysql-bin.000001:8"), ("mariadb", "1-2-3")])
def test_a_position_of_mysql_is_read_as_it_was_written(kind, text):
    assert str(parse(kind, text)) == text


@answers("a_custom_sources_non_json_offset_still_yields_a_usable_record")
def test_the_positions_of_a_source_of_ones_own_are_kept_as_they_are(store):
    mine = Checkpoint("mine", "\x00\x7f{not json", 3)
    store.save("orders", mine)
    assert store.load("orders") == mine


@answers("a_built_in_sources_non_json_offset_is_refused_with_a_named_reason")
@pytest.mark.parametrize("kind", ["postgresql", "mysql", "mariadb"])
def test_a_position_that_a_source_of_ours_can_not_have_is_refused_with_the_reason(store, kind):
    refused(store, Checkpoint(kind, "{not a position", 3), f"is no position of a {kind} source")


@answers("mariadb_offset_checkpoints_under_its_own_source_type")
def test_mariadb_is_not_mysql(store):
    store.save("orders", Checkpoint("mariadb", "0-1-100", 7))
    assert store.load("orders").kind == "mariadb"
    refused(
        store, Checkpoint("mysql", "mysql-bin.000004:1234", 8), "belongs to a mariadb source, and this one is mysql"
    )


# --- files -------------------------------------------------------------------------------------------------------


@answers("a_temp_file_orphaned_by_a_crash_is_discarded_on_the_next_lease")
def test_what_a_dead_writer_left_half_done_is_cleared_away_and_nothing_else(tmp_path):
    for name in ("orders.json.part", "keep_me.json", "keep_me.part"):
        (tmp_path / name).write_bytes(b'{"partial":')
    with FileStore(tmp_path) as store:
        store.claim("orders")
        store.save("orders", at(5))
    assert sorted(os.listdir(tmp_path)) == ["keep_me.json", "keep_me.part", "orders.json"]


@answers("file_checkpoint_rejects_missing_directory")
def test_a_folder_that_is_missing_is_made_and_one_that_can_not_be_is_refused(tmp_path):
    """Theirs has to be there. A consumer that starts for the first time should not need a mkdir."""
    with FileStore(tmp_path / "missing") as store:
        store.claim("orders")
        store.save("orders", at(1))
        assert store.load("orders") == at(1)
    (tmp_path / "file").write_bytes(b"")
    with (
        FileStore(tmp_path / "file" / "below") as store,
        pytest.raises(StateError, match="cannot write to the checkpoint"),
    ):
        store.claim("orders")


@answers("file_checkpoint_rejects_corrupt_json")
def test_what_is_no_json_is_refused(store, tmp_path):
    file = tmp_path / "orders.json"
    file.write_bytes(b"{not-json")
    file.chmod(0o600)
    with pytest.raises(CheckpointRefused, match="checkpoint orders is damaged"):
        store.load("orders")


@answers("corrupted_checkpoint_offset_is_rejected_rather_than_silently_resumed")
def test_a_position_that_was_changed_does_not_match_its_checksum(store, tmp_path):
    store.save("orders", at(4_096, events=7))
    file = tmp_path / "orders.json"
    file.write_bytes(file.read_bytes().replace(b'"0/1000"', b'"0/1001"'))
    with pytest.raises(CheckpointRefused, match="does not match its checksum") as caught:
        store.load("orders")
    assert "tailrace checkpoint seed" in caught.value.hint


@answers("checkpoint_without_a_checksum_is_rejected_with_a_legible_error")
def test_one_without_a_checksum_is_refused_and_says_what_it_lacks(store, tmp_path):
    store.save("orders", at(42, events=5))
    rewritten(tmp_path / "orders.json", checksum=None)
    with pytest.raises(CheckpointRefused, match="missing required field `checksum`"):
        store.load("orders")


@answers("round_trip_and_seeded_checkpoints_both_pass_the_integrity_check")
def test_one_that_was_saved_and_one_that_was_seeded_are_both_sound(store, tmp_path):
    store.save("orders", at(99, events=3))
    assert store.load("orders") == at(99, events=3)
    seed = ["--kind", "postgresql", "--position", "0/96", "--events", "8"]
    assert main(["checkpoint", "seed", str(tmp_path), "invoices", *seed]) == 0
    assert store.load("invoices") == Checkpoint("postgresql", "0/96", 8)


@answers("file_checkpoint_writes_current_format_version")
def test_a_file_says_its_format(store, tmp_path):
    store.save("orders", at(123, events=3))
    assert json.loads((tmp_path / "orders.json").read_bytes())["format"] == 1


@answers("file_checkpoint_rejects_record_without_explicit_version")
def test_one_without_a_format_is_refused(store, tmp_path):
    store.save("orders", at(42, events=7))
    rewritten(tmp_path / "orders.json", format=None)
    with pytest.raises(CheckpointRefused, match="missing required field `format`"):
        store.load("orders")


@answers("file_checkpoint_rejects_unknown_record_version")
def test_one_of_a_format_to_come_is_refused(store, tmp_path):
    store.save("orders", at(1))
    rewritten(tmp_path / "orders.json", format=99)
    with pytest.raises(CheckpointRefused, match="has format 99, and this version of tailrace knows format 1"):
        store.load("orders")


@answers("file_checkpoint_rejects_mixed_source_types_in_single_directory")
def test_a_folder_may_hold_several_sources_and_a_name_only_one(store):
    """Theirs has a file a kind, and a folder a consumer. Here a consumer is a name, and keeps its source."""
    store.save("orders", at(1))
    refused(
        store, Checkpoint("mysql", "mysql-bin.000001:4", 2), "belongs to a postgresql source, and this one is mysql"
    )
    store.claim("invoices")
    store.save("invoices", Checkpoint("mysql", "mysql-bin.000001:4", 2))
    assert store.list() == ["invoices", "orders"]


@answers("file_checkpoint_allows_snapshot_and_stream_variants_in_single_directory")
def test_snapshot_and_stream_are_of_one_checkpoint(store):
    """Theirs are two files, of which the newer counts."""
    copying = at(3, copies=(TableCopy(ORDERS, (Chunk("public.orders", 1, 9),)),))
    store.save("orders", copying)
    assert store.load("orders") == copying
    store.save("orders", at(9))
    assert store.load("orders") == at(9)


# --- what may follow what ----------------------------------------------------------------------------------------


@answers("file_checkpoint_rejects_non_monotonic_committed_count")
def test_a_count_that_shrinks_is_refused(store):
    store.save("orders", at(200, events=10))
    refused(store, at(150, events=9), "counts 10 events, and would count 9")


@answers("file_checkpoint_rejects_a_rewound_stream_position_while_the_count_advances")
def test_a_position_that_goes_back_is_refused_though_the_count_grows(store):
    store.save("orders", Checkpoint("mysql", "binlog.000042:88371", 10))
    refused(
        store, Checkpoint("mysql", "binlog.000042:4", 20), "is at binlog.000042:88371, and would go back to binlog.0000"
    )


@answers("a_postgres_checkpoint_may_move_backwards_because_pgoutput_legitimately_does")
def test_a_position_of_postgresql_never_goes_back_because_it_is_the_end_of_a_commit(store):
    """Theirs are the positions of rows, which are not in the order of commits; ours are those of commits, which are."""
    store.save("orders", at(110, events=10))
    refused(store, at(100, events=20), "would go back to 0/64")


@answers("file_checkpoint_rejects_conflicting_equal_count_offset")
def test_at_the_same_count_a_position_may_only_go_on(store):
    """Theirs refuses any other. Here a stream that has nothing to deliver goes on, so that the source can forget."""
    store.save("orders", at(300, events=21))
    refused(store, at(299, events=21), "would go back to")
    store.save("orders", at(301, events=21))


@answers("a_postgres_lsn_of_zero_is_still_caught")
def test_zero_is_no_position_of_postgresql(store):
    store.save("orders", at(5_000))
    refused(store, at(0, events=6_000), "'0/0' is no position")


@answers("a_binlog_position_of_zero_is_caught_as_a_regression")
def test_zero_is_no_position_in_a_binlog(store):
    store.save("orders", Checkpoint("mysql", "binlog.000042:88371", 10))
    refused(store, Checkpoint("mysql", "binlog.000042:0", 20), "'binlog.000042:0' is no position")


@answers("binlog_files_are_ordered_by_sequence_number_not_by_text")
def test_binlogs_are_in_the_order_of_their_numbers():
    assert compare("mysql", "binlog.1000000:4", "binlog.999999:900") is Order.AFTER


@answers("a_gtid_positioned_stream_is_not_judged_on_server_local_coordinates")
def test_gtids_go_on_at_another_server_after_a_failover(store):
    store.save("orders", Checkpoint("mysql", GTIDS.format(500), 10, SERVER))
    elsewhere = msgspec.structs.replace(SERVER, system="7302")
    store.save("orders", Checkpoint("mysql", GTIDS.format(620), 20, elsewhere))
    refused(store, Checkpoint("mysql", GTIDS.format(510), 30, elsewhere), "would go back to")


@answers("a_renamed_replication_slot_is_not_comparable")
def test_a_checkpoint_of_another_slot_is_of_another_source(store):
    """Theirs takes it, as it can not be compared. What the new slot never sent would be skipped in silence."""
    store.save("orders", at(5_000))
    other = msgspec.structs.replace(SERVER, slot="slot-b")
    refused(store, at(6_000, source=other), "slot tailrace_shop, and this is .* slot slot-b")


@answers("an_unrecognised_source_type_is_left_alone")
def test_positions_of_a_source_of_ones_own_are_not_compared(store):
    store.save("orders", Checkpoint("custom", "9", 3))
    store.save("orders", Checkpoint("custom", "1", 4))
    assert store.load("orders").position == "1"


@answers("the_advertised_scope_matches_what_the_guard_actually_compares")
@pytest.mark.parametrize(
    ("kind", "earlier", "later"),
    [
        ("postgresql", "0/1", "0/2"),
        ("mysql", "binlog.000001:4", "binlog.000001:5"),
        ("mysql", GTIDS.format(5), GTIDS.format(6)),
        ("mariadb", "binlog.000001:4", "binlog.000001:5"),
        ("mariadb", "0-1-5", "0-1-6"),
    ],
)
def test_every_position_that_is_documented_is_compared(kind, earlier, later):
    import tailrace.model.positions as documented

    assert f"| {kind}" in documented.__doc__ or f", {kind} |" in documented.__doc__
    assert compare(kind, earlier, later) is Order.BEFORE


# --- one writer --------------------------------------------------------------------------------------------------


@answers("file_checkpoint_rejects_owner_lease_conflict_from_live_pid", "acquire_refuses_live_pid_lease")
@pytest.mark.crash
def test_what_a_living_process_holds_is_refused_with_its_number(tmp_path):
    with child(partial(save_always, partial(open_store, str(tmp_path)), "orders")) as (process, answers_):
        next(answers_)
        with FileStore(tmp_path) as store, pytest.raises(CheckpointTaken, match=f"held by pid {process.pid} on"):
            store.claim("orders")


@answers("file_checkpoint_recovers_from_stale_owner_lease_of_dead_process", "acquire_clears_stale_dead_pid_lease")
@pytest.mark.crash
def test_what_a_dead_process_held_is_free_at_once(tmp_path):
    with child(partial(save_always, partial(open_store, str(tmp_path)), "orders")) as (process, answers_):
        next(answers_)
        process.kill()
        process.wait()
        assert (tmp_path / "orders.lock").exists(), "it could not clear it away"
        with FileStore(tmp_path) as store:
            store.claim("orders")
            assert json.loads((tmp_path / "orders.lock").read_bytes())["pid"] == os.getpid()


@answers(
    "a_second_file_checkpoint_on_the_same_directory_is_refused",
    "a_second_instance_in_this_process_is_refused",
    "a_second_writable_handle_is_still_refused",
)
def test_a_second_store_of_this_process_is_refused_until_the_first_lets_go(store, tmp_path):
    store.save("orders", at(77, events=5))
    with FileStore(tmp_path) as second:
        with pytest.raises(CheckpointTaken, match=f"held by pid {os.getpid()} on"):
            second.claim("orders")
        with pytest.raises(Misuse):
            second.save("orders", at(78))
        assert store.load("orders") == at(77, events=5)
        store.release("orders")
        second.claim("orders")
        assert second.load("orders") == at(77, events=5)


@answers("acquire_creates_new_lease", "format_and_parse_round_trip", "acquire_winner_path_exercises_post_rename_check")
def test_who_holds_a_checkpoint_stands_beside_it(store, tmp_path):
    signed = json.loads((tmp_path / "orders.lock").read_bytes())
    assert (signed["pid"], signed["host"]) == (os.getpid(), os.uname().nodename)


@answers("dropping_the_lease_removes_the_sentinel_file")
def test_who_lets_go_leaves_no_lock(store, tmp_path):
    store.release("orders")
    assert not (tmp_path / "orders.lock").exists()


@answers(
    "parse_rejects_old_pid_only_format",
    "parse_handles_hostname_with_dots",
    "parse_handles_hostname_with_hyphens",
    "parse_rejects_empty",
    "post_rename_check_predicate_accepts_own_pid_rejects_foreign",
)
@pytest.mark.parametrize(
    "text", ["", "12345", "my.host-name:1", '{"token":"a","host":"my.host-name","pid":1,"since":0}']
)
def test_what_a_lock_says_is_for_people_and_decides_nothing(tmp_path, text):
    """Theirs is a lease by its text. Here the system holds the lock, and lets go when its holder is dead."""
    (tmp_path / "orders.lock").write_text(text)
    with FileStore(tmp_path) as store:
        store.claim("orders")
        store.save("orders", at(7))


@answers("decrementing_past_zero_is_a_no_op")
def test_letting_go_twice_is_no_matter(store):
    store.release("orders")
    store.release("orders")
    store.release("never-claimed")


@answers("a_rejected_acquire_does_not_poison_the_path")
def test_a_claim_that_was_refused_can_be_made_later(store, tmp_path):
    with FileStore(tmp_path) as second:
        with suppress(CheckpointTaken):
            second.claim("orders")
            pytest.fail("it is held")
        store.release("orders")
        second.claim("orders")


@answers("verify_still_held_detects_a_stolen_or_deleted_lease")
def test_a_lock_that_was_removed_or_taken_is_noticed_before_the_next_write(store, tmp_path):
    store.save("orders", at(1))
    os.unlink(tmp_path / "orders.lock")
    refusal = pytest.raises(CheckpointTaken, match="was taken over by whoever removed")
    with refusal:
        store.save("orders", at(2))
    with FileStore(tmp_path) as other:
        other.claim("orders")
        with pytest.raises(CheckpointTaken, match=f"was taken over by pid {os.getpid()}"):
            store.save("orders", at(2))
        assert other.load("orders") == at(1)


# --- across a restart --------------------------------------------------------------------------------------------


@answers("file_checkpoint_survives_checkpoint_store_restart")
def test_what_was_saved_is_there_after_a_restart(store, tmp_path):
    store.save("orders", at(9001, events=128))
    store.close()
    assert FileStore(tmp_path).load("orders") == at(9001, events=128)


@answers("incremental_snapshot_cursors_survive_a_checkpoint_round_trip")
def test_a_snapshot_under_way_goes_on_where_it_was(store, tmp_path):
    left = tuple(Chunk("public.users", number, 1000, place=f"id > {number}000") for number in range(10, 12))
    copies = (TableCopy(ORDERS, left, visibility="740:744:741", generation=2, rows=50_000, is_paused=True),)
    store.save("orders", at(9001, events=62_000, copies=copies, tables={"public.orders": "740:744:741"}))
    store.close()
    found = FileStore(tmp_path).load("orders")
    assert (found.copies, found.tables, found.position) == (copies, {"public.orders": "740:744:741"}, at(9001).position)


@answers("a_checkpoint_without_snapshot_progress_is_a_clean_fresh_start")
def test_a_checkpoint_need_not_have_a_snapshot(store, tmp_path):
    store.save("orders", at(42))
    store.close()
    assert FileStore(tmp_path).load("orders").copies == ()


@answers("a_read_only_handle_inspects_a_directory_a_writer_owns")
def test_others_may_look_while_somebody_writes(store, tmp_path):
    store.save("orders", at(4242, events=7))
    looking = FileStore(tmp_path)
    assert (looking.load("orders"), looking.list()) == (at(4242, events=7), ["orders"])
    store.save("orders", at(5000, events=9))
    assert looking.load("orders").events == 9


@answers("a_read_only_handle_refuses_to_write")
def test_who_has_not_claimed_a_name_can_not_write_it(tmp_path):
    with pytest.raises(Misuse, match="has not claimed it") as caught:
        FileStore(tmp_path).save("orders", at(1))
    assert 'claim("orders")' in caught.value.hint
    assert not os.listdir(tmp_path)


def test_a_file_that_others_may_read_is_refused(store, tmp_path):
    """rustcdc enforces that without a test."""
    store.save("orders", at(1))
    (tmp_path / "orders.json").chmod(0o640)
    with pytest.raises(CheckpointRefused, match="mode 0640"):
        store.load("orders")


def test_a_name_that_could_lead_out_of_the_folder_is_refused(store):
    """rustcdc makes the names itself."""
    with pytest.raises(ConfigError, match="can not be the name"):
        store.claim("../orders")
