"""Every change of a database, printed: `python five_lines.py postgresql://user@host/shop`.

The folder `checkpoints` remembers how far it came; stop it and start it again.
"""

import sys

import tailrace

with tailrace.capture(sys.argv[1], "public.*", checkpoint="checkpoints") as stream:
    for batch in stream:
        for event in batch.events():
            print(event.op, event.table, event.key, event.after, flush=True)
        batch.ack()
