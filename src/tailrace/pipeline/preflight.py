"""Whether a pipeline can work: its source, its state directory, its sinks and its engine, its documents and transforms.

Starts none of it, but for Spark where there are transforms, which `check` asks Catalyst about.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import pyarrow as pa

from tailrace import config, registry
from tailrace.config.describing import tables_of
from tailrace.documents.judging import Remark
from tailrace.errors import ConfigError, MissingExtra, SinkRejected, SourceRefused, StateError, TailraceError
from tailrace.model.schema import TableSchema
from tailrace.pipeline.described import holding, read_catalog
from tailrace.pipeline.transformable import refuse_untransformable
from tailrace.sinks.base import Concern, Examines
from tailrace.sources.base import Finding, Level
from tailrace.sources.findings import Failure, fail, failure, number_of, ok, warn
from tailrace.spark import java, versions
from tailrace.spark.masters import refuse_local_sink
from tailrace.state.storage import Storage

STATE = "state directory"
LOCAL = "local"  # what the file does not say, the run asks of Spark
_GIB = 1 << 30


def check(pipeline: config.Pipeline) -> list[Finding]:
    """Every finding, never an exception of ours."""
    findings = check_without_sinks(pipeline)
    is_readable = not _is_failing(findings)
    for name in pipeline.sinks:
        findings += sink_findings(pipeline, name, is_readable=is_readable)
    if is_readable:
        findings += document_findings(pipeline)
    return findings if _is_failing(findings) else [*findings, *transform_findings(pipeline)]


def _is_failing(findings: Iterable[Finding]) -> bool:
    return any(finding.level is Level.FAIL for finding in findings)


def check_without_sinks(pipeline: config.Pipeline) -> list[Finding]:
    return [
        *source_findings(pipeline),
        *state_findings(pipeline.state, pipeline.log.max_bytes),
        java_finding(os.environ),
        pyspark_finding(),
    ]


def check_capture(pipeline: config.Pipeline) -> list[Finding]:
    """What a capture alone needs."""
    return [*source_findings(pipeline), *state_findings(pipeline.state, pipeline.log.max_bytes)]


def raise_if_failing(findings: Iterable[Finding]) -> None:
    """Raise what the first failing finding stands for, its fix as the hint. Other people's findings are refusals."""
    for finding in findings:
        is_of_some_tables = isinstance(finding, Failure) and finding.is_of_some_tables
        if finding.level is Level.FAIL and not is_of_some_tables:
            kind: type[TailraceError] = finding.error if isinstance(finding, Failure) else SourceRefused
            raise kind(finding.message, hint=finding.fix or None)


def source_findings(pipeline: config.Pipeline) -> list[Finding]:
    try:
        found = registry.make_source(pipeline).preflight()
    except TailraceError as error:
        return [failure("source", error)]
    return found


def sink_finding(pipeline: config.Pipeline, name: str) -> Finding:
    subject = f"sink {name}"
    settings = pipeline.sinks[name]
    try:
        refuse_local_sink(pipeline, name, pipeline.spark.master or LOCAL)
        sink = registry.make_sink(pipeline, name)
        if pipeline.transforms:
            refuse_untransformable(sink)
        sink.check()
    except TailraceError as error:
        return failure(subject, error)
    return ok(subject, f"{config.redact(settings.url)} can be written")


def sink_findings(pipeline: config.Pipeline, name: str, *, is_readable: bool) -> Iterator[Finding]:
    """Whether a sink can be used, and what it finds out by looking closer, for the tables that the source has."""
    found = sink_finding(pipeline, name)
    yield found
    if found.level is Level.FAIL:
        return
    sink = registry.make_sink(pipeline, name)
    try:
        if isinstance(sink, Examines):
            tables = registry.make_source(pipeline).readable() if is_readable else []
            yield from (_concern(each, name) for each in sink.examine(tables))
    except TailraceError as error:
        yield failure(f"sink {name}", error)
    finally:
        sink.close()


def _concern(concern: Concern, sink: str) -> Finding:
    subject = f"sink {sink}: {concern.subject}"
    if not concern.is_failing:
        return warn(subject, concern.message, concern.fix)
    return fail(subject, concern.message, concern.fix, SinkRejected, is_of_some_tables=bool(concern.table))


def document_findings(pipeline: config.Pipeline) -> Iterator[Finding]:
    """Each description beside the source's catalog: what can not work, and what will be slow."""
    try:
        holders = holding(pipeline)
        catalog = read_catalog(pipeline) if holders or pipeline.documents else None
    except TailraceError as error:
        if pipeline.documents:
            yield failure("documents", error)
        return
    if catalog is None:
        return
    held = {name for sink in holders for name in sink.documents}
    for name in pipeline.documents:
        yield from _described(pipeline, name, catalog.remarks(name), is_held=name in held)
    for table in (schema.table for schema in catalog.flat.values() if not schema.key):
        fix = "give it a primary key, describe it with a `key`, or leave it out of `flat`"
        yield warn(table, "it has no key, so its documents would have no id: it will be set aside", fix)


def _described(pipeline: config.Pipeline, name: str, remarks: list[Remark], *, is_held: bool) -> Iterator[Finding]:
    yield from (_remark(remark) for remark in remarks)
    if not is_held:
        fix = "add one such as opensearch://localhost:9200, or name the document in its `documents`"
        yield warn(f"documents.{name}", "no sink of the pipeline holds it", fix)
    if not remarks:
        tables = {table for _, table in tables_of(pipeline.documents[name])}
        yield ok(f"documents.{name}", f"made of {number_of(len(tables), 'table')}, which have all that it needs")


def _remark(remark: Remark) -> Finding:
    if remark.is_failing:
        return fail(remark.place, remark.message, remark.fix, ConfigError)
    return warn(remark.place, remark.message, remark.fix)


def transform_findings(pipeline: config.Pipeline) -> Iterator[Finding]:
    """Catalyst is asked, so Spark is started: where there are transforms only, and beside the state directory."""
    if not pipeline.transforms:
        return
    from tailrace.spark.expressions import Expressions
    from tailrace.spark.session import open_session

    schemas = {schema.table: schema for schema in registry.make_source(pipeline).tables()}
    with tempfile.TemporaryDirectory(prefix="tailrace-check-") as folder:
        spark = open_session(msgspec.structs.replace(pipeline, state=folder))
        expressions = Expressions(spark, pipeline.transforms)
        for table in pipeline.transforms:
            yield _transform_finding(expressions.held, table, schemas.get(table))


def _transform_finding(hold: Callable[[TableSchema], TableSchema], table: str, schema: TableSchema | None) -> Finding:
    subject = f"transforms.{table}"
    if schema is None:
        fix = "correct the name; a table that is not there yet will be transformed when it is"
        return warn(subject, "the source has no such table to be captured", fix)
    try:
        held = hold(schema)
    except TailraceError as error:
        return failure(subject, error)
    return ok(subject, f"the sinks have {', '.join(column.name for column in held.columns)}")


def state_findings(state: str, max_bytes: int) -> Iterator[Finding]:
    if "://" in state:
        yield _remote_state(state)
        return
    folder = Path(state)
    standing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=standing):
            pass
    except OSError as error:
        yield fail(
            STATE,
            f"cannot write to the state directory {folder}: {_reason(standing, error)}",
            f"make {standing} writable for this user, or choose another folder with `state`",
            StateError,
        )
        return
    yield ok(STATE, f"{folder} {'is writable' if standing == folder else 'will be created'}")
    yield from _space(standing, _size(folder), max_bytes)


def _space(standing: Path, used: int, max_bytes: int) -> Iterator[Finding]:
    """What the log has taken already counts as room for the log."""
    free = shutil.disk_usage(standing).free
    if free + used < max_bytes:
        yield warn(
            STATE,
            f"{free / _GIB:.1f} GiB are free on the disk, and the change log may grow to {max_bytes / _GIB:.1f} GiB",
            "free some space, or lower log.max_bytes: a full log makes capture wait",
        )


def _remote_state(state: str) -> Finding:
    """An object store is asked whether it answers; whether it can be written shows when it is."""
    try:
        Storage(state).exists()
    except (OSError, StateError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        message = f"cannot reach the state directory {config.redact(state)}: {reason}"
        return fail(STATE, message, "correct `state`, or the credentials of the store", StateError)
    return ok(STATE, f"{config.redact(state)} answers")


def _reason(standing: Path, error: OSError) -> str:
    if not standing.is_dir():
        return f"{standing} is not a folder"
    return (error.strerror or str(error)).lower()


def _size(folder: Path) -> int:
    """Bytes in the folder; files that vanish while we look (a running pipeline's) do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(Path(parent, name)).st_size
            except OSError:
                continue
    return total


def java_finding(environment: Mapping[str, str]) -> Finding:
    program = java.find_java(environment)
    if program is None:
        home = environment.get("JAVA_HOME")
        where = f"JAVA_HOME ({home}) has none" if home else "none is on the PATH"
        return fail("java", f"Spark needs Java {java.NEEDED} or newer and {where}", java.INSTALL, StateError)
    version = java.java_version(program)
    if version is None:
        return fail("java", f"{program} does not run, or does not say its version", java.INSTALL, StateError)
    if version < java.NEEDED:
        message = f"Spark needs Java {java.NEEDED} or newer and {program} is Java {version}"
        return fail("java", message, java.INSTALL, StateError)
    return ok("java", f"Java {version} at {program}")


def refuse_other_spark() -> None:
    """Before more of pyspark is imported than its version: another one may not have it."""
    raise_if_failing([pyspark_finding()])


def pyspark_finding() -> Finding:
    try:
        import pyspark
    except ImportError as error:
        return fail("spark", f"pyspark cannot be imported: {error}", versions.INSTALL, MissingExtra)
    version = str(pyspark.__version__)
    if not versions.is_supported(version):
        return fail("spark", versions.refusal(version), versions.INSTALL, MissingExtra)
    return ok("spark", f"pyspark {version}")
