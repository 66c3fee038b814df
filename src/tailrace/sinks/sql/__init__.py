"""SQL databases as sinks. Start at `sink`; a new database is a folder with what `dialect` asks for.

sink          the contract's methods, each handed to one of these:
  commits       a batch in one transaction        table_merge       the staged rows of one table into it
  snapshots     copies of tables                  chunks            the rows of one chunk
  recovery      what a crash left half done       quarantine/       rows that were set aside
  cleanup       what is of no use any more

parts         what they share:
  claim         which run may write               sessions          connections, and what their errors mean
  notes         what the sink remembers           ready             what need not be asked again
  places        where tables are                  tables            made, or checked and used as they are
  copies        a copy beside its table           alterations       a table changed in place

staged        receipts of staged rows; made by `writers` from `pieces`
trouble       whose an error is
merge_statements, table_checks, references       what they say in SQL, and what they refuse
"""
