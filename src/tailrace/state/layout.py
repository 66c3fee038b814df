"""Where things lie inside the state directory."""

LOG = "log"
"""The change log."""

SPARK = "spark"
"""Spark's checkpoints: a hint only, made anew by every run, because the sinks know how far they are."""

STAGED = "staged"
"""What tasks leave for the commit of a sink that has no place of its own for it."""

HOLD = "hold.json"
"""A request to let no sink go past an offset for a while: see `pipeline.holding`."""

REQUESTS = "requests"
"""What is asked of the run from outside: see `pipeline.requests`."""

READERS = "readers"
"""The places of named readers of the change log: see `log.readers`."""

CAPTURE = "capture.json"
"""How capture is: see `pipeline.capture_note`."""

CAPTURED = "captured.json"
"""What a capture on another host says to the run: see `pipeline.capture_elsewhere`."""

ACKNOWLEDGED = "acknowledged.json"
"""What every sink has, said by the run to a capture on another host."""

CAPTURE_LOCK = "capture.lock"
"""Held by `tailrace capture`."""

RUN_LOCK = "run.lock"
"""Held by the run."""

WRITER_LOCK = "writer.lock"
"""Held by the capture process, in the folder of the log."""
