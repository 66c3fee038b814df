"""`tailrace demo`: a shop, its pipeline, a murder, a return, and a comparison of everything."""
