"""Kafka as a sink: every change as a message, exactly once for those who read what is committed."""

from tailrace.sinks.kafka.sink import KafkaSink as KafkaSink
