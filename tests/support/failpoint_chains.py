"""The failpoints of a pipeline, by the process that dies there, in the order in which they are reached."""

from __future__ import annotations

OF_THE_DRIVER = (
    "snapshot-planned",
    "snapshot-finished",
    "catch-up-step-committed",
    "table-live",
    "batch-staged",
    "sink-before-commit",
    "sink-committed",
)
"""In the order of a table's life: each run dies at one of them, and the next one goes on to the following."""
OF_CAPTURE = (
    "log-segment-written",
    "log-segment-synced",
    "log-segment-published",
    "log-segments-merged",
    "capture-before-acknowledge",
    "capture-after-acknowledge",
)
OF_TASKS = ("chunk-before-load", "chunk-loaded")
