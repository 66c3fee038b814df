"""Views of what a run says: JSON lines for programs, one live display for a person."""
