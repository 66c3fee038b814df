"""The pipeline file: what it may say, and what it answers when it is wrong."""

from __future__ import annotations

import pickle
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from rich.pretty import pretty_repr

from tailrace.config import (
    Acknowledge,
    Keep,
    Pipeline,
    Spark,
    TablePatterns,
    Transform,
    from_urls,
    json_schema,
    load,
    redact,
    sqlite_path,
)
from tailrace.errors import ConfigError
from tailrace.sources.postgres.settings import PostgresSettings

SHOP = """
name: shop
source:
  url: postgresql://tailrace:${DB_PASSWORD}@db:5432/shop
  tables: [public.*, "!public.audit_*"]
sinks:
  replica:
    url: sqlite:///replica.db
state: ./state
"""
PASSWORD = {"DB_PASSWORD": "s3cret"}


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "pipeline.yml"
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def fail(write):
    """The error that a file gives, without the file's name."""

    def fail(text: str, environ: dict[str, str] = PASSWORD) -> ConfigError:
        path = write(text)
        with pytest.raises(ConfigError) as caught:
            load(path, environ)
        assert str(caught.value).startswith(f"{path}: ")
        return ConfigError(str(caught.value).removeprefix(f"{path}: "), hint=caught.value.hint)

    return fail


# --- a good file


def test_the_file_of_the_design_loads(write, tmp_path):
    pipeline = load(write(SHOP), PASSWORD)
    assert pipeline.name == "shop"
    assert pipeline.source.url == "postgresql://tailrace:s3cret@db:5432/shop"
    assert pipeline.source.tables == ("public.*", "!public.audit_*")
    assert pipeline.source.acknowledge is Acknowledge.SINKS
    assert pipeline.state == str(tmp_path / "state")


def test_slot_and_publication_are_named_after_the_pipeline(write):
    pipeline = load(write(SHOP), PASSWORD)
    settings = pipeline.source_settings(PostgresSettings)
    assert settings.slot_of(pipeline.name) == "tailrace_shop"
    assert settings.publication_of(pipeline.name) == "tailrace_shop"


def test_slot_and_publication_may_be_chosen(write):
    text = SHOP.replace("  tables:", "  slot: mine\n  publication: Ours\n  tables:")
    pipeline = load(write(text), PASSWORD)
    settings = pipeline.source_settings(PostgresSettings)
    assert (settings.slot_of("shop"), settings.publication_of("shop")) == ("mine", "Ours")


def test_messages_of_applications_are_nothing_for_a_pipeline(write):
    """Whoever reads them asks for them: `tailrace.capture(…, messages=True)`."""
    with pytest.raises(ConfigError, match=r"source.*messages"):
        load(write(SHOP.replace("  tables:", "  messages: true\n  tables:")), PASSWORD)


def test_relative_paths_are_relative_to_the_file(write, tmp_path, monkeypatch):
    path = write(SHOP)
    monkeypatch.chdir("/")
    pipeline = load(path, PASSWORD)
    assert sqlite_path(pipeline.sinks["replica"].url) == tmp_path / "replica.db"
    assert pipeline.state == str(tmp_path / "state")


def test_absolute_paths_and_object_stores_stay(write):
    text = SHOP.replace("sqlite:///replica.db", "sqlite:////srv/replica.db").replace("./state", "s3://bucket/state")
    pipeline = load(write(text), PASSWORD)
    assert pipeline.sinks["replica"].url == "sqlite:////srv/replica.db"
    assert pipeline.state == "s3://bucket/state"


def test_sizes_may_have_a_unit(write):
    text = SHOP + "log: {max_bytes: 2 GiB, segment_bytes: 1.5MB}\n"
    log = load(write(text), PASSWORD).log
    assert (log.max_bytes, log.segment_bytes) == (2 * 1024**3, 1_500_000)


def test_only_keys_of_ours_are_sizes(write):
    text = SHOP.replace("replica.db", "r.db\n    schemas: {in_bytes: out}") + "spark: {conf: {spark.x_bytes: many}}\n"
    pipeline = load(write(text), PASSWORD)
    assert pipeline.sinks["replica"].schemas == {"in_bytes": "out"}
    assert pipeline.spark.conf == {"spark.x_bytes": "many"}


def test_spark_settings_become_text():
    assert Spark(conf={"a": True, "b": 2, "c": "x"}).settings() == {"a": "true", "b": "2", "c": "x"}


def test_a_pipeline_pickles(write):
    pipeline = load(write(SHOP), PASSWORD)
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline


# --- variables


@pytest.mark.parametrize("password", ["p@ss/w:rd", "a#b?c%41&d=e", "'\"{}[]: - \n*!", "ünï", "${HOME}", "$${x}"])
def test_a_password_can_hold_any_character(write, password):
    url = load(write(SHOP), {"DB_PASSWORD": password}).source.url
    parsed = conninfo_to_dict(url)
    assert parsed == {"user": "tailrace", "password": password, "host": "db", "port": "5432", "dbname": "shop"}


def test_a_url_that_is_a_variable_is_taken_as_it_is(write):
    text = SHOP.replace("postgresql://tailrace:${DB_PASSWORD}@db:5432/shop", "${URL}")
    assert load(write(text), {"URL": "postgresql://a:b%40c@h/d"}).source.url == "postgresql://a:b%40c@h/d"


def test_a_host_and_a_database_are_not_encoded(write):
    text = SHOP.replace("db:5432/shop", "${HOST}/${NAME:-shop}")
    url = load(write(text), {**PASSWORD, "HOST": "[::1]:5432"}).source.url
    assert url == "postgresql://tailrace:s3cret@[::1]:5432/shop"


@pytest.mark.parametrize(("environ", "expected"), [({}, "fallback"), ({"X": ""}, "fallback"), ({"X": "set"}, "set")])
def test_a_default_serves_when_the_variable_is_unset_or_empty(write, environ, expected):
    pipeline = load(write(SHOP.replace("./state", "/${X:-fallback}")), PASSWORD | environ)
    assert pipeline.state == f"/{expected}"


def test_a_variable_may_hold_a_number(write):
    text = SHOP + "log: {flush_interval_ms: '${FLUSH}'}\n"
    assert load(write(text), PASSWORD | {"FLUSH": "250"}).log.flush_interval_ms == 250


def test_a_doubled_dollar_is_a_plain_one(write):
    assert load(write(SHOP.replace("./state", "/$${X}")), PASSWORD).state == "/${X}"


def test_a_missing_variable_is_named_with_its_place(fail):
    error = fail(SHOP, {})
    assert str(error) == "source.url: the environment variable DB_PASSWORD is not set"
    assert "export DB_PASSWORD=" in (error.hint or "")


def test_a_missing_variable_in_a_list_is_named_with_its_place(fail):
    assert str(fail(SHOP.replace('"!public.audit_*"', '"${T}"'))).startswith("source.tables[1]: ")


def test_an_open_variable_is_an_error(fail):
    assert "never ends" in str(fail(SHOP.replace("${DB_PASSWORD}", "${DB_PASSWORD")))


# --- wrong files: the place, what was expected, the fix

WRONG: list[tuple[str, str, str, str, str | None]] = [
    ("a misspelt key", "  tables:", "  tabels:", "source.tabels: unknown key", "did you mean `tables`?"),
    ("a misspelt key of a sink", "    url:", "    ulr:", "sinks.replica.ulr: unknown key", "did you mean `url`?"),
    (
        "a strange key",
        "state:",
        "zebra:",
        "zebra: unknown key",
        "known here: name, source, sinks, transforms, documents, state, capture, log, spark",
    ),
    (
        "a missing key",
        "name: shop",
        "",
        "name: missing",
        "add `name:` (lower case letters, digits and _; names what is made in the source)",
    ),
    ("text for a list", '[public.*, "!public.audit_*"]', "public.*", "source.tables: expected a list, got text", None),
    ("a number for text", "./state", "5", "state: expected text, got a whole number", None),
    ("nothing", "./state", "", "state: expected text, got nothing", None),
    ("a number in a list", '"!public.audit_*"', "7", "source.tables[1]: expected text, got a whole number", None),
    ("no tables", '[public.*, "!public.audit_*"]', "[]", "source.tables: expected a list of length >= 1", None),
    ("an upper case name", "name: shop", "name: Shop", "name: expected text of another form", None),
    ("a long name", "name: shop", "name: " + "x" * 41, "name: expected text of another form", None),
    ("a sink with a strange name", "  replica:", "  my-replica:", "sinks: a key: expected text of another form", None),
    (
        "a URL without a scheme",
        "sqlite:///replica.db",
        "replica.db",
        "sinks.replica.url: expected text of another form",
        "scheme://user:password@host:port/database",
    ),
    (
        "a sqlite URL without a file",
        "sqlite:///replica.db",
        "sqlite://",
        "sinks.replica.url: a sqlite URL names a file",
        None,
    ),
    (
        "a database in memory",
        "sqlite:///replica.db",
        "'sqlite:///:memory:'",
        "sinks.replica.url: a sqlite URL names a file",
        None,
    ),
    ("a table without a schema", "public.*", "orders", "source.tables: `orders` is not a table pattern", None),
    (
        "a name that is none of a table",
        "sqlite:///replica.db",
        "sqlite:///replica.db\n    tables: {a.b.c: renamed}",
        "sinks.replica.tables: `a.b.c` is not the name of a table",
        'write schema.table: public.orders or public."odd.name"',
    ),
    (
        "only exclusions",
        "public.*, ",
        "",
        "source.tables: every pattern excludes tables and none includes any",
        'begin the list with "*.*"',
    ),
    (
        "a key twice",
        "state: ./state",
        "name: again",
        "line 9, column 1: not valid YAML: key `name` twice",
        None,
    ),
    (
        "an unquoted exclusion",
        '"!public.audit_*"',
        "!public.audit_*",
        "line 6, column 6: not valid YAML: expected ',' or ']', but got ':'",
        'put a value that begins with * or ! in quotes, such as "!public.audit_*"',
    ),
    (
        "an unquoted star",
        "public.*",
        "*.orders",
        "line 5, column 13: not valid YAML: `*` and `!` have a meaning of their own",
        None,
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"), [case[1:] for case in WRONG], ids=[case[0].replace(" ", "-") for case in WRONG]
)
def test_a_wrong_file_says_where_and_what(fail, old: str, new: str, message: str, hint: str | None):
    assert old in SHOP
    error = fail(SHOP.replace(old, new, 1))
    assert str(error) == message
    assert hint is None or error.hint == hint


@pytest.mark.parametrize(
    ("addition", "message"),
    [
        ("log: {max_bytes: much}", "log.max_bytes: expected a size in bytes"),
        ("log: {max_bytes: 1}", "log.max_bytes: expected a whole number >= 1024"),
        ("log: {max_bytes: [1]}", "log.max_bytes: expected a whole number, got a list"),
        ("log:", "log: expected a mapping (key: value), got nothing"),
        ("spark: {conf: {spark.x: [1]}}", "spark.conf.spark.x: expected text, a number, true or false, got a list"),
    ],
)
def test_a_wrong_section_says_where_and_what(fail, addition: str, message: str):
    assert str(fail(SHOP + addition)) == message


def test_the_sink_that_is_wrong_is_named(fail):
    text = SHOP.replace(
        "sinks:", "sinks:\n  good: {url: 'sqlite:///good.db'}\n  bad: {url: 'sqlite:///b', max_rows: 0}"
    )
    assert str(fail(text)) == "sinks.bad.max_rows: expected a whole number >= 1"


def test_a_wrong_choice_says_where(fail):
    assert str(fail(SHOP.replace("  tables:", "  acknowledge: never\n  tables:"))).startswith("source.acknowledge: ")


@pytest.mark.parametrize("text", ["", "just text", "- a\n- b"])
def test_a_file_that_is_no_mapping_says_so(fail, text):
    assert str(fail(text)).startswith("the file: expected a mapping (key: value), got ")


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "x: \t- y", "a: 'open"])
def test_broken_yaml_says_the_line(fail, text):
    assert "not valid YAML" in str(fail(text))
    assert "line " in str(fail(text))


def test_a_missing_file_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="no such file") as caught:
        load(tmp_path / "none.yml")
    assert "tailrace init" in (caught.value.hint or "")


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_a_file_that_is_not_text_is_a_sentence(tmp_path):
    path = tmp_path / "pipeline.yml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(path)


# --- two URLs


def test_two_urls_make_a_pipeline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipeline = from_urls("postgresql://u:p@h/Shop-1", "sqlite:///replica.db", tables=["public.*"])
    assert pipeline.name.startswith("shop_1_")
    assert pipeline.source.tables == ("public.*",)
    assert sqlite_path(pipeline.sinks["sink"].url) == tmp_path / "replica.db"
    assert pipeline.state == str(tmp_path / "state" / pipeline.name)


def test_two_urls_take_every_table_unless_told():
    pipeline = from_urls("postgresql://h/d", "sqlite:////tmp/x.db")
    assert pipeline.source.patterns.matches("any", "thing")


def test_other_urls_have_another_name_but_another_password_has_not():
    def name(from_url: str, to_url: str) -> str:
        return from_urls(from_url, to_url).name

    assert name("postgresql://u:a@h/d", "sqlite:////x.db") == name("postgresql://u:b@h/d", "sqlite:////x.db")
    assert name("postgresql://u:a@h/d", "sqlite:////x.db") != name("postgresql://u:a@h/d", "sqlite:////y.db")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:pass/tail@h/d",
        "postgresql://u:pass@tail@h/d",
        "postgresql://u:pass tail@h/d",
        "postgresql://u:%zztail@h/d",
        "postgresql://u:[tail@h/d",
        "postgresql://h/d?password=%tail",
        "mysql://u:pass#tail@h/d",
        "mysql://u@h:tail/d",
    ],
)
def test_a_url_that_can_be_read_in_two_ways_is_refused_without_a_word_of_it(url: str):
    for urls in ((url, "sqlite:////x.db"), ("postgresql://h/d", url)):
        with pytest.raises(ConfigError, match="the URL can not be read") as caught:
            from_urls(*urls)
        assert "tail" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p%40x%2F@h:5432/d",
        "postgresql:///d?host=/run/x&options=-c%20a%3Db@c",
        "postgresql://u@[::1]:1,h:2/d",
        "mysql://h",
    ],
)
def test_urls_that_are_well_formed_are_taken(url: str):
    assert from_urls(url, url).source.url == url


def test_a_given_name_and_state_are_used(tmp_path):
    pipeline = from_urls("postgresql://h/d", "sqlite:////tmp/x.db", name="mine", state=str(tmp_path))
    assert (pipeline.name, pipeline.state) == ("mine", str(tmp_path))


# --- secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("postgresql://u:p@x@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p/x@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p@h/d?x=a@b", "postgresql://u:***@h/d?x=a@b"),
        ("postgresql://:p@h/d", "postgresql://:***@h/d"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgresql://h:5432/d", "postgresql://h:5432/d"),
        (
            "postgresql://h/d?user=u&password=p&sslpassword=q#z",
            "postgresql://h/d?user=u&password=***&sslpassword=***#z",
        ),
        ("sqlite:////folder/replica.db", "sqlite:////folder/replica.db"),
        ("postgresql:u:p", "postgresql:***"),
    ],
)
def test_redact_hides_the_password_and_nothing_else(url: str, shown: str):
    assert redact(url) == shown


def test_secrets_are_in_no_repr(write):
    text = SHOP + "spark: {conf: {spark.hadoop.fs.s3a.secret.key: s3cret, spark.ui.enabled: false}}\n"
    pipeline = load(write(text), PASSWORD)
    for shown in (repr(pipeline), str(pipeline), pretty_repr(pipeline)):
        assert "s3cret" not in shown
        assert "spark.ui.enabled" in shown


@pytest.mark.parametrize("place", ["shop", "./state", "sqlite:///replica.db", "postgresql://"])
@pytest.mark.parametrize("secret", ["[hunter2]", "{hunter2: 1}", "hunter2 : x", "'", "*hunter2", "!hunter2"])
def test_secrets_are_in_no_error(fail, place: str, secret: str):
    error = fail(SHOP.replace(place, secret, 1))
    assert "hunter2" not in f"{error} {error.hint}"


# --- table patterns


@pytest.mark.parametrize(
    ("patterns", "table", "expected"),
    [
        (["public.*"], ("public", "orders"), True),
        (["public.*"], ("sales", "orders"), False),
        (["public.*"], ("publicx", "orders"), False),
        (["public.*"], ("public", "a.b"), True),
        (["*"], ("any", "thing"), True),
        (["*.orders"], ("sales", "orders"), True),
        (["*.orders"], ("a", "b.orders"), False),
        (["public.order?"], ("public", "orders"), True),
        (["public.order?"], ("public", "order"), False),
        (["public.*", "!public.audit_*"], ("public", "audit_log"), False),
        (["!public.audit_*", "public.*"], ("public", "audit_log"), False),
        (["public.Orders"], ("public", "orders"), False),
        (["public.Orders"], ("public", "Orders"), True),
        (['public."odd.name"'], ("public", "odd.name"), True),
        (['"my.schema"."a*"'], ("my.schema", "a*"), True),
        (['"my.schema"."a*"'], ("my.schema", "ab"), False),
        (['public."say ""hi"""'], ("public", 'say "hi"'), True),
        (["public.a[b]+"], ("public", "a[b]+"), True),
        (["public.a b"], ("public", "a b"), True),
        (["public.*"], ("public", "new\nline"), True),
    ],
)
def test_patterns_choose_tables(patterns: list[str], table: tuple[str, str], expected: bool):
    assert TablePatterns(patterns).matches(*table) is expected


@pytest.mark.parametrize(
    "pattern", ["orders", "", ".", "a.", ".a", "a.b.c", 'public."open', 'public."a"b', "!", "a..b"]
)
def test_a_malformed_pattern_is_an_error(pattern: str):
    with pytest.raises(ConfigError):
        TablePatterns(["public.*", pattern])


def test_patterns_that_match_nothing_are_named():
    patterns = TablePatterns(["public.*", "public.ordres", "!public.audit", "sales.*"])
    assert patterns.unmatched([("public", "orders"), ("public", "items")]) == ["public.ordres", "sales.*"]


# --- JSON Schema


def test_the_schema_describes_every_key():
    schema = json_schema()
    assert set(schema["$defs"]["Pipeline"]["properties"]) == set(Pipeline.__struct_fields__)
    for name, definition in schema["$defs"].items():
        for key, value in definition.get("properties", {}).items():
            is_tag = key == "type" and len(value.get("enum", [])) == 1
            assert is_tag or _is_described(value), f"{name}.{key}"


def test_the_schema_allows_sizes_with_a_unit():
    types = [option["type"] for option in json_schema()["$defs"]["Log"]["properties"]["max_bytes"]["anyOf"]]
    assert types == ["integer", "string"]


def _is_described(schema: dict[str, Any]) -> bool:
    options = schema.get("anyOf", [])
    return "description" in schema or "$ref" in schema or any("description" in option for option in options)


# --- log.keep


def test_history_may_be_kept_for_a_time_or_up_to_a_size(write):
    assert load(write(SHOP), PASSWORD).log.kept is None
    assert load(write(SHOP + "log: {keep: 24 h}\n"), PASSWORD).log.kept == Keep(86_400, 0)
    assert load(write(SHOP + "log: {keep: 10 GiB}\n"), PASSWORD).log.kept == Keep(None, 10 << 30)


@pytest.mark.parametrize("value", ["forever", "24", "24 m", "24 hours, 10 GiB", "-1 h", "1.h"])
def test_history_of_another_form_is_an_error_that_shows_the_forms(fail, value):
    error = fail(SHOP + f'log: {{keep: "{value}"}}\n')
    assert str(error) == "log.keep: expected text of another form"
    assert "a time such as `24 h` or `7 d`, or a size such as `10 GiB`" in (error.hint or "")


def test_more_history_than_the_log_may_hold_is_an_error(fail):
    error = fail(SHOP + "log: {max_bytes: 1 GiB, keep: 2 GiB}\n")
    assert str(error) == "log.keep: more than log.max_bytes, so it can not be kept"


def test_the_schema_knows_the_forms_of_history():
    [text] = [o for o in json_schema()["$defs"]["Log"]["properties"]["keep"]["anyOf"] if o.get("type") == "string"]
    assert all(re.match(text["pattern"], value) for value in ("24 h", "10 GiB"))
    assert not re.match(text["pattern"], "10")


# --- transforms


def test_transforms_are_by_table_however_the_file_writes_its_name(write):
    text = SHOP + 'transforms: {\'"public".orders\': {where: "n > 1", columns: {x: "n * 2"}, drop: [y]}}'
    found = load(write(text), PASSWORD).transforms
    assert found == {"public.orders": Transform(where="n > 1", columns={"x": "n * 2"}, drop=("y",))}


@pytest.mark.parametrize(
    ("transforms", "words"),
    [
        ("{public.orders: {were: n > 1}}", "were"),
        ("{public.orders: {where: ''}}", "where"),
        ("{elsewhere.orders: {where: n > 1}}", "elsewhere.orders is not one of source.tables"),
        ("{public.audit_orders: {where: n > 1}}", "public.audit_orders is not one of source.tables"),
    ],
)
def test_a_transform_that_can_not_be_meant_is_refused_with_its_place(fail, transforms, words):
    error = fail(SHOP + f"transforms: {transforms}")
    assert str(error).startswith("transforms")
    assert words in str(error)
