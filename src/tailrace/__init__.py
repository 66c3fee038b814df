"""Change data capture that runs on Apache Spark: every committed change, exactly once."""
