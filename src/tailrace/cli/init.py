"""`tailrace init`: write a commented pipeline file to begin with."""

from __future__ import annotations

import argparse
from pathlib import Path

from tailrace.cli.arguments import DEFAULT_FILE, Commands
from tailrace.errors import ConfigError

TEMPLATE = """\
# A tailrace pipeline. `tailrace check` tries it out, `tailrace run` runs it.
# ${VARIABLE} and ${VARIABLE:-default} come from the environment; in a URL, the variable holds the password as it is.
# `tailrace schema` prints the JSON Schema of this file for your editor.

# Lower case letters, digits and _. Slot and publication are called tailrace_<name>.
name: shop

source:
  url: postgresql://tailrace:${DB_PASSWORD}@localhost:5432/shop
  # schema.table; * and ? are wildcards, ! excludes. Quote what begins with * or !
  tables: [public.*, "!public.audit_*"]

  # PostgreSQL's own:
  # slot: tailrace_shop
  # publication: tailrace_shop
  # create: true             # create slot and publication when they are missing
  # binary: true             # binary values: faster, the same content

  # acknowledge: sinks       # the source may forget what all sinks have; `log`: what the change log has
  # heartbeat_ms: 1000       # how often the source hears from us
  # snapshot:
  #   chunk_bytes: 16 MiB    # how much of a table is loaded in one step

sinks:
  replica:
    # Three slashes: relative to this file. Four: an absolute path.
    url: sqlite:///replica.db

    # schemas: {public: main}  # source schema: schema in the sink
    # tables: {public.orders: sales_orders}      # source table: its name in the sink
    # columns: {public.orders: {total: amount}}  # source table: {source column: its name in the sink}
    # misfits: refuse          # values that the sink's type can not hold; or `text`, or `quarantine`
    # on_error: stop           # at a row that the sink refuses; or `quarantine`
    # on_table_error: isolate  # a table that can not be copied or written is set aside; or `stop` the sink
    # max_rows: 1000000      # changes a micro-batch takes at most; transactions stay whole

# What becomes of a table's rows on their way, in Spark SQL.
# transforms:
#   public.orders:
#     where: "status <> 'draft'"
#     columns: {total_eur: "cast(total * 1.1 as decimal(12,2))"}   # replaced or added
#     drop: [internal_remark]

# Documents of several tables for a search, in a sink such as opensearch://localhost:9200: see docs/documents.md.
# documents:
#   orders:
#     table: public.orders
#     fields:
#       status: keyword
#       items: {type: has_many, table: public.order_items, foreign_key: order_id, fields: {quantity: integer}}

# The change log. It may be deleted while the pipeline is stopped: nothing is lost or doubled.
state: ./state

# log:
#   max_bytes: 10 GiB        # when full, capture waits instead of filling the disk
#   segment_bytes: 32 MiB
#   flush_interval_ms: 100
#   # keep: 24 h           # history that stays though every sink has it; or a size such as 10 GiB

# spark:
#   master: local[*]         # or spark://host:7077, yarn, k8s://…; what spark-submit says counts more
#   ship: true               # send tailrace itself to the workers of a cluster; false where it is installed there
#   conf:
#     spark.driver.memory: 2g
"""


def add(subparsers: Commands) -> None:
    parser = subparsers.add_parser("init", help="write a commented pipeline file", description=__doc__)
    parser.add_argument("file", metavar="FILE", nargs="?", default=DEFAULT_FILE, help=f"default: {DEFAULT_FILE}")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the file; an existing one is left alone unless `--force` is given."""
    path = Path(args.file)
    try:
        with path.open("w" if args.force else "x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists already", hint="choose another name, or use --force to overwrite it"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    print(f"wrote {path}; edit it, then try it out with `tailrace check {path}`")
    return 0
