"""The row itself, with what happened to it beside its columns."""
