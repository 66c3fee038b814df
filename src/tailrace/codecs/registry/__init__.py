"""A schema registry, as Confluent's REST interface has it."""
