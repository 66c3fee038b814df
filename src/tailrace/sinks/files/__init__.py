"""A folder as a sink: every change in files, by table and day, exactly once."""

from tailrace.sinks.files.reading import committed as committed
from tailrace.sinks.files.sink import FileSink as FileSink
