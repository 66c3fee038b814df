"""OpenSearch as a sink: a document a row of a virtual table."""

from tailrace.sinks.opensearch.sink import OpenSearchSink as OpenSearchSink
