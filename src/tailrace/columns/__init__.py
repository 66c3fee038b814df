"""The craft over Arrow and numpy: whole columns in, whole columns out."""
