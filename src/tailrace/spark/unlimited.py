"""The stream of `format("tailrace")` on Spark 4.1, which asks for the newest offset and says nothing of a limit.

A pipeline's stream is bounded by the reader itself, which knows where the last micro-batch that was planned ends. A
user's stream takes all there is: Spark 4.1 makes one micro-batch of `availableNow`, and does not tell its source, so a
bound would end such a query early and in silence. There a limit is refused.
"""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from tailrace.errors import ConfigError
from tailrace.spark.datasource import Offset, StreamReader

LIMITS = ("maxRowsPerTrigger", "maxBytesPerTrigger")


class UnlimitedReader(StreamReader):
    _planned: Offset | None = None
    _first: Offset | None = None

    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802 - Spark's name, as it was in 4.1
        if "table" in self.options:
            _refuse_limits(self.options)
            return self.recent()
        self._first = self._first or self.initialOffset()
        return self.end_after(self._planned or self._first, self.max_rows)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if self._planned is None or end["offset"] > self._planned["offset"]:
            self._planned = end
        if start == end:
            self._hear_of_checkpoint(start)
            return []
        return super().partitions(start, end)

    def _hear_of_checkpoint(self, seen: Offset) -> None:
        """Before it goes on, Spark names the end of what it planned last, but not whether that is to be done again."""
        self.check_log(seen)
        if self.place is not None:
            self.place.begin(self.log, str(seen["log"]), None)


def _refuse_limits(options: dict[str, str]) -> None:
    for limit in LIMITS:
        if limit.lower() in options:
            raise ConfigError(
                f'format("tailrace"): the option `{limit}` needs Spark 4.2 or newer;'
                " without it a micro-batch takes all that there is"
            )
