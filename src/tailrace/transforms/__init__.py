"""Transforms: what becomes of a table's rows on their way, in Spark SQL. Knows nothing of Spark.

- `shaping`: a table's expressions as Catalyst has understood them, and the columns that come of them.
- `wire`: how rows travel from a task's decoder through Catalyst to where they are staged.
- `completing`: rows of which a change did not send what an expression reads.
"""
