"""Values of Kafka Connect's schemas as bytes, all rows at once: Avro and Protobuf."""
