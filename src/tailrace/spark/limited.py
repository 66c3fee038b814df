"""The stream of `format("tailrace")` on Spark 4.2 and newer, which says where a micro-batch begins and its limit."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from tailrace.spark.datasource import ANY, Offset, StreamReader


class LimitedReader(StreamReader, SupportsTriggerAvailableNow):
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self.max_rows) if self.max_rows != ANY else ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        return self.end_after(start, limit.max_rows if isinstance(limit, ReadMaxRows) else ANY)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        if not self.log.storage.is_local:  # a figure of Spark's progress reports, and not worth a request
            return None
        return self.newest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self.stop_at = self.newest()["offset"]
