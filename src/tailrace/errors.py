"""Every error tailrace raises on purpose, by what the operator should do about it.

TailraceError
├── ConfigError            correct the configuration
│   └── MissingExtra       install the extra it names
├── Misuse                 correct the program that calls us: nothing was done
├── SourceError
│   ├── SourceUnavailable  retried
│   ├── SourceRefused      the database will not allow it: grant, configure or free what it names
│   ├── SourceChanged      it is not the database that it was: point back, or begin anew
│   ├── PositionLost       the database no longer has our place: snapshot again
│   ├── DecodeError        bytes we cannot read: stop, never skip
│   └── ValueRefused       a value that no Arrow type of ours can hold: stop or quarantine
├── StateError             the state directory cannot be written or is in use
│   ├── StateUnavailable   retried: its disk is full, or its store does not answer
│   ├── OffsetGone         the log does not hold what a reader asks for: begin at what it keeps
│   ├── CheckpointRefused  it is damaged, or not the one that belongs there: point elsewhere, or seed it anew
│   ├── CheckpointTaken    another process writes it now: one of the two has to go
│   └── LogCorrupt         a segment failed its checksum
├── SinkError
│   ├── SinkUnavailable    retried
│   ├── SinkTaken          another run writes to it now: one of the two has to go
│   ├── SinkChanged        it is not as we left it: restored, or written by somebody else
│   └── SinkRejected       the sink refuses a row or a table: stop or quarantine
└── EngineLost             Spark died under us: start again
    └── EngineDisturbed    retried: Spark lives, and lost a worker or a task
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TailraceError(Exception):
    """Base of all errors raised on purpose. Pickles with all it says, so Spark can carry it.

    With a `table` it is that table's own trouble, and nobody else's. An error may be one to `retry` though its kind is
    not, or the other way round.
    """

    retry = False
    hint: str | None = None
    table: str | None = None

    def __init__(self, message: str, *, hint: str | None = None, table: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint
        if table is not None:
            self.table = table

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), str(self), self.hint, self.table, self.retry))


def _rebuild(
    kind: type[TailraceError], message: str, hint: str | None, table: str | None, retry: bool
) -> TailraceError:
    error = kind(message, hint=hint, table=table)
    error.retry = retry
    return error


class ConfigError(TailraceError):
    """The pipeline file, an option or a URL is wrong."""


class MissingExtra(ConfigError):
    """A connector's Python package is not installed; the message is the command that installs it."""


class Misuse(TailraceError):
    """A call that makes no sense at this moment, or from this thread or process. Nothing was done."""


class SourceError(TailraceError):
    """Something about the source database."""


class SourceUnavailable(SourceError):
    """The database cannot be reached at this moment."""

    retry = True


class SourceRefused(SourceError):
    """The database answered, and will not do what capture needs."""


class SourceChanged(SourceError):
    """The source is another database than the one that the log and the sinks were read from."""

    hint = (
        "point source.url back at the database it was; or run `tailrace drop` on this pipeline, then `tailrace run`:"
        " every table is copied again"
    )


class PositionLost(SourceError):
    """The source has forgotten changes that a sink still needs. Continuing would be silent loss."""

    hint = "run `tailrace drop` on this pipeline, then `tailrace run`: every table is copied again"


class DecodeError(SourceError):
    """Bytes that do not follow the protocol."""


class ValueRefused(SourceError):
    """A value outside of what its Arrow type can hold."""


class StateError(TailraceError):
    """The state directory cannot be used."""


class StateUnavailable(StateError):
    """The state directory cannot be used at this moment. What is not in it yet, the source still has."""

    retry = True


class OffsetGone(StateError):
    """A part of the change log that a reader asks for is not there."""

    hint = (
        "begin at what is kept, with a new checkpoint; the option `reader` makes the log wait for a stream, and"
        " `log.keep` keeps history"
    )


class CheckpointRefused(StateError):
    """A checkpoint that can not be trusted, or may not take the place of the one that is there."""


class CheckpointTaken(StateError):
    """Another process has the checkpoint. Nothing of ours may be written any more."""

    hint = "one stream has one consumer: stop the other one, or give this one another name"


class LogCorrupt(StateError):
    """A segment of the change log is damaged."""

    hint = "delete the state directory and run again: the source still has what the sinks do not"


class SinkError(TailraceError):
    """Something about a sink."""


class SinkUnavailable(SinkError):
    """The sink cannot be reached, or is busy, at this moment."""

    retry = True


class SinkTaken(SinkError):
    """Another run has claimed the sink since this one did. Nothing of ours may be written any more."""

    hint = "one pipeline runs once: stop the other run, or this one"


class SinkChanged(SinkError):
    """What the sink remembers is not what we wrote last."""

    retry = True
    hint = "was the sink restored from a backup, or changed by hand?"


class SinkRejected(SinkError):
    """The sink will not take a row, a column or a table."""


class EngineLost(TailraceError):
    """Spark's JVM or a query died."""

    hint = "run the same command again: it continues where the sinks are"


class EngineDisturbed(EngineLost):
    """Spark's JVM lives, and lost a worker of its own: on a busy machine it may not have come up in time."""

    retry = True


@contextmanager
def about(table: str) -> Iterator[None]:
    """A value or a table that is refused inside is one of this table, unless the error says another."""
    try:
        yield
    except (DecodeError, ValueRefused, SinkRejected) as error:
        error.table = error.table or table
        raise
