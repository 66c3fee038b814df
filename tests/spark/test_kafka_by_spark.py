"""Topics read by Spark's own connector, as docs/kafka.md shows it: each change once, and the rows of the source.

The newest Spark has no connector yet: an older one reads, in an environment of its own, as in test_older_spark.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psycopg
import pyspark
import pytest

from support import kafka_reading, maven
from support.kafka import KafkaCluster
from support.pipelines import RunningPipeline, run_until_current, write_pipeline
from tailrace import failpoints
from tailrace.spark.versions import OLDEST, parse
from tailrace.testing.plugin import requires, unavailable
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(5400)]

ROOT = Path(__file__).parents[2]
CONNECTORS = {(4, 1): "4.1.3", (4, 2): "4.2.0"}
TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1"
"""Part of the connector, for Kerberos: not every mirror has that of each version."""
OF_THE_CONNECTOR = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""What else it needs is in pyspark."""
BEHIND_IT = """
import json, sys
folder = sys.argv[1]
stream = changes(spark.readStream.format("kafka").options(**TOPIC).load()).writeStream.format("parquet")
stream = stream.option("path", folder).option("checkpointLocation", folder + "-places")
stream.trigger(availableNow=True).start().awaitTermination()
kinds = [dict(each.groupBy("op").count().collect()) for each in (told, spark.read.parquet(folder))]
found = rows.selectExpr("id", "customer", "CAST(total AS STRING)", "unix_micros(placed_at)").orderBy("id").collect()
print(json.dumps([*kinds, found]))
"""
SAME = "SELECT id, customer, total::text, (extract(epoch FROM placed_at) * 1000000)::bigint FROM orders ORDER BY id"
CHANGES = (
    "INSERT INTO orders SELECT n, 'new ' || n, n * 1.25, now() FROM generate_series(1001, 1200) n",
    "UPDATE orders SET total = total + 0.5, customer = NULL WHERE id % 10 = 0",
    "DELETE FROM orders WHERE id % 7 = 0",
    "UPDATE orders SET id = id + 10000 WHERE id BETWEEN 100 AND 110",
)


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> str:
    """Of an environment whose Spark has a connector: this one, or the one of the oldest Spark."""
    for name in [name for name in os.environ if name.startswith("PYSPARK_")]:
        monkeypatch.delenv(name)
    if parse(pyspark.__version__) in CONNECTORS:
        return sys.executable
    environment = ROOT / f".venv-spark-{OLDEST[0]}.{OLDEST[1]}"
    if not (environment / ".setup-done").exists():
        unavailable(f"there is no {environment.name}: `make {environment.name}/.setup-done` makes it")
    return str(environment / "bin" / "python")


@pytest.fixture
def connector(python: str) -> str:
    """Its jars, as spark-submit takes them."""
    question = [python, "-c", "import pyspark; print(pyspark.__version__)"]
    version = CONNECTORS[parse(subprocess.run(question, capture_output=True, text=True, check=True).stdout)]
    package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"
    folder = requires(maven.jars, f"spark-sql-kafka-{version}", [package], [TOKENS])
    return ",".join(str(jar) for jar in sorted(folder.iterdir()) if jar.name.startswith(OF_THE_CONNECTOR))


@pytest.fixture
def prefix(postgres_url: str, kafka_broker: KafkaCluster, kafka_prefix: str, tmp_path: Path) -> str:
    """Of topics that a pipeline has written which was killed in its copy: the messages of a chunk are there twice."""
    execute(
        postgres_url,
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, total numeric(12, 2), placed_at timestamptz)",
        "INSERT INTO orders SELECT n, 'customer ' || n, n * 0.01, now() - n * interval '1 s'"
        " FROM generate_series(1, 1000) n",
    )
    sink = {"url": kafka_broker.url, "partitions": 3, "prefix": kafka_prefix, "decimals": "string"}
    source = {"snapshot": {"chunk_bytes": 16384}}
    file = write_pipeline(tmp_path, postgres_url, {"topics": sink}, tables=["public.*"], source=source)
    with RunningPipeline(file, environment=failpoints.environment("sink-before-commit", nth=4)) as running:
        assert running.ended() == -9, running.output
    execute(postgres_url, *CHANGES)
    run_until_current(file)
    return kafka_prefix


def test_sparks_own_connector_reads_each_change_once_as_the_documentation_shows(
    python: str, connector: str, postgres_url: str, kafka_broker: KafkaCluster, prefix: str, tmp_path: Path
) -> None:
    topic = f"{prefix}.public.orders"
    [block] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "kafka.md").read_text(), re.DOTALL)
    assert "broker1:9092" in block
    assert "shop.public.orders" in block
    shown = block.replace("broker1:9092", kafka_broker.servers).replace("shop.public.orders", topic)
    (tmp_path / "shown.py").write_text(shown + BEHIND_IT)
    settings = "--master local[2] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2"
    done = subprocess.run(
        [python, str(tmp_path / "shown.py"), str(tmp_path / "streamed")],
        env=os.environ | {"PYSPARK_SUBMIT_ARGS": f"--jars {connector} {settings} pyspark-shell"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    read, streamed, rows = json.loads(done.stdout.splitlines()[-1])
    sent = [message for message in kafka_reading.read(kafka_broker.servers, [topic]) if message.value is not None]
    everything = kafka_reading.read(kafka_broker.servers, [topic], committed=False)
    assert read == streamed == Counter(message.value["op"] for message in sent)
    assert len(everything) > len(kafka_reading.read(kafka_broker.servers, [topic]))  # what was broken off is there
    with psycopg.connect(postgres_url) as connection:
        assert [tuple(row) for row in rows] == connection.execute(SAME.encode()).fetchall()
