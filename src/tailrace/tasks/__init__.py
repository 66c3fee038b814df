"""What a Spark task does. Knows nothing of Spark."""
