"""Asking Catalyst what a table's expressions read and make, and refusing those that are not of one row alone.

An expression has to give the same for the same row, whenever it is asked: a batch may be done again, a row may be read
again, and `verify` computes it anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException, PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import from_arrow_type

from tailrace import config
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.spark.datasource import arrow_schema
from tailrace.transforms.shaping import Shaping, problem, refusal

WHERE = "where"
_OF_THE_MOMENT = ("Current", "CurDate", "Now", "LocalTime", "InputFile", "VariableReference")
"""How the classes begin of expressions that are the same within a query, and others in the next one."""
_WORDS = r"\s*(?:now|today|tomorrow|yesterday)\b"
_MOMENT = re.compile(_WORDS, re.IGNORECASE)
_LITERAL = re.compile(rf"\b(?:date|timestamp\w*)\s*r?['\"]{_WORDS}", re.IGNORECASE)
"""Texts that Spark takes for the moment at which it reads them, where they are to be a date or a time."""

_STARS = ("UnresolvedStar", "UnresolvedRegex")

_MADE: dict[type[spark_types.DataType], ColumnType] = {
    spark_types.BooleanType: ColumnType(Kind.BOOLEAN, "boolean"),
    spark_types.ByteType: ColumnType(Kind.INT16, "smallint"),
    spark_types.ShortType: ColumnType(Kind.INT16, "smallint"),
    spark_types.IntegerType: ColumnType(Kind.INT32, "integer"),
    spark_types.LongType: ColumnType(Kind.INT64, "bigint"),
    spark_types.FloatType: ColumnType(Kind.FLOAT32, "real"),
    spark_types.DoubleType: ColumnType(Kind.FLOAT64, "double precision"),
    spark_types.StringType: ColumnType(Kind.TEXT, "text"),
    spark_types.BinaryType: ColumnType(Kind.BYTES, "bytea"),
    spark_types.DateType: ColumnType(Kind.DATE, "date"),
    spark_types.TimestampType: ColumnType(Kind.TIMESTAMPTZ, "timestamp with time zone"),
    spark_types.TimestampNTZType: ColumnType(Kind.TIMESTAMP, "timestamp without time zone"),
}


class Expressions:
    """The transforms of a pipeline, as far as they have been asked for. Several threads may ask."""

    def __init__(self, spark: SparkSession, transforms: Mapping[str, config.Transform]) -> None:
        self.spark, self._transforms = spark, transforms
        self._known: dict[str, list[Shaping]] = {}
        self._captured: dict[TableSchema, TableSchema] = {}

    def __contains__(self, table: str) -> bool:
        return table in self._transforms

    @property
    def has_any(self) -> bool:
        return bool(self._transforms)

    def of(self, schema: TableSchema) -> Shaping:
        """What becomes of this version of a table; raises ConfigError, as that table's own, where that is not clear."""
        known = self._known.setdefault(schema.table, [])
        for shaping in known:
            if shaping.fits(schema):
                return shaping
        shaping = analysed(self.spark, schema, self._transforms[schema.table])
        known.append(shaping)
        return shaping

    def known(self, table: str) -> list[Shaping]:
        """What has been asked for of a table: one, as long as the columns that its expressions read stay the same."""
        return list(self._known.get(table, []))

    def held(self, schema: TableSchema) -> TableSchema:
        """What a sink has of this version of a table."""
        if schema.table not in self:
            return schema
        held = self.of(schema).schema(schema)
        self._captured[held] = schema
        return held

    def captured(self, held: TableSchema) -> TableSchema:
        """The version of a table of which a sink has this: one that `held` was asked for."""
        return self._captured[held]

    def said(self, table: str) -> list[Any]:
        """All that the result of a table's expressions depends on besides its rows."""
        own = self._transforms[table]
        settings = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
        return [own.where, list(own.columns.items()), sorted(own.drop), [self.spark.conf.get(s) for s in settings]]


def analysed(spark: SparkSession, schema: TableSchema, transform: config.Transform) -> Shaping:
    """A transform as Catalyst understands it for this version of the table; raises ConfigError."""
    if (found := problem(transform, schema)) is not None:
        raise found
    frame = _empty(spark, schema)
    texts = {f"columns.{name}": text for name, text in transform.columns.items()}
    texts |= {WHERE: transform.where} if transform.where is not None else {}
    types, names = {}, set[str]()
    for place, text in texts.items():
        types[place], reads = _analysed(frame, schema.table, place, text)
        names |= reads
    if WHERE in types and not isinstance(types[WHERE], spark_types.BooleanType):
        raise refusal(schema.table, WHERE, f"is {types[WHERE].simpleString()}, and not true or false")
    columns = tuple(column for column in schema.columns if column.name in names)
    form = arrow_schema(spark_types.StructType([frame.schema[c.name] for c in columns]))
    computed = [Column(name, _made(schema.table, name, types[f"columns.{name}"])) for name in transform.columns]
    return Shaping(schema.table, transform, columns, form, tuple(computed))


def _empty(spark: SparkSession, schema: TableSchema) -> DataFrame:
    """No rows, with the table's columns as Spark has them. A column of a type that it has not can not be read."""
    fields = []
    for field in schema.arrow:
        try:
            fields.append(spark_types.StructField(field.name, _spark_type(field.type), True))
        except PySparkTypeError:
            continue
    return spark.createDataFrame([], spark_types.StructType(fields))


def _spark_type(type_: pa.DataType) -> spark_types.DataType:
    return from_arrow_type(type_, prefer_timestamp_ntz=True)


def _analysed(frame: DataFrame, table: str, place: str, text: str) -> tuple[spark_types.DataType, set[str]]:
    """The type of one expression, and the columns that it reads."""
    try:
        parsed = frame.sparkSession._jsparkSession.sessionState().sqlParser().parseExpression(text)
        if any(name.startswith(_STARS) for name in _classes(parsed)):
            raise refusal(table, place, "names its columns by a pattern: name each")  # and ours would be among them
        made = frame.select(F.expr(text).alias("made"))
        plan = made._jdf.queryExecution().analyzed()
    except (AnalysisException, ParseException) as error:
        raise refusal(table, place, _words(error)) from error
    if plan.nodeName() != "Project" or plan.child().children().size() or plan.subqueries().size():
        raise refusal(table, place, "is not an expression of one row: it aggregates, joins, or makes rows")
    if len(made.columns) != 1 or not plan.deterministic():
        raise refusal(table, place, "does not give the same for the same row every time")
    if (moment := _moment(text, plan.projectList().apply(0))) is not None:
        raise refusal(table, place, f"depends on the moment at which it is asked ({moment})")
    return made.schema[0].dataType, set(_named(plan.references().toSeq()))


def _moment(text: str, analysed: Any) -> str | None:
    """What in an expression is another one in the next query, if anything is. A literal is a date once it is parsed."""
    if (found := _LITERAL.search(text)) is not None:
        return found[0] + "'"
    for each in _all(analysed):
        name = _class(each)
        if name.startswith(_OF_THE_MOMENT):
            return name
        if name == "Cast" and each.child().foldable() and _MOMENT.match(str(each.child().eval(None))):
            return "a text that is no date"
    return None


def _classes(expression: Any) -> Iterator[str]:
    return map(_class, _all(expression))


def _class(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _all(expression: Any) -> Iterator[Any]:
    """An expression, and all that it is made of."""
    yield expression
    children = expression.children()
    for place in range(children.size()):
        yield from _all(children.apply(place))


def _named(attributes: Any) -> Iterator[str]:
    for place in range(attributes.size()):
        yield str(attributes.apply(place).name())


def _words(error: AnalysisException) -> str:
    """Catalyst's first sentence, without its number and its plan."""
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return first.partition(" SQLSTATE:")[0].strip().rstrip(".")


def _made(table: str, name: str, type_: spark_types.DataType) -> ColumnType:
    """The type of a column that an expression makes."""
    if isinstance(type_, spark_types.DecimalType):
        return ColumnType(Kind.DECIMAL, f"numeric({type_.precision},{type_.scale})", type_.precision, type_.scale)
    if isinstance(type_, spark_types.ArrayType) and type(type_.elementType) in _MADE:
        element = _MADE[type(type_.elementType)]
        return ColumnType(Kind.ARRAY, f"{element.name}[]", element=element)
    for kind, made in _MADE.items():
        if isinstance(type_, kind):
            return made
    raise refusal(table, f"columns.{name}", f"is {type_.simpleString()}, which no column can be: cast it")
