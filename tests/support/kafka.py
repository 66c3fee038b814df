"""A real Kafka for tests, from Maven packages: brokers in KRaft mode, plain TCP on 127.0.0.1, and other listeners.

They end with the process that started them; as root they run as `nobody`. Ports stay the same over `kill`, `stop` and
`restart`, so the URL stays true. With several brokers the first one is the controller too, and the one to leave alone:
`kill(2)` moves leaders.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from support import maven
from tailrace.testing import processes
from tailrace.testing.processes import Owner, ServerFailed, ServerUnavailable

PACKAGES = (
    "org.apache.kafka:kafka_2.13:4.3.1",
    "org.apache.kafka:kafka-tools:4.3.1",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
START_SECONDS = 120.0
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""For brokers that live for some minutes; one whose speed is measured does without."""
LOGGING = """\
<Configuration>
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %m (%c)%n%ex"/></Console></Appenders>
  <Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


class Node(msgspec.Struct, frozen=True):
    """A broker's number and where it listens; `ports` are those of its other listeners, by name."""

    number: int
    port: int
    controller_port: int
    ports: dict[str, int] = {}


class KafkaCluster:
    """One or more running brokers. Made with `start`; a context manager that stops them, and removes their folder."""

    def __init__(
        self,
        brokers: int,
        owner: Owner,
        settings: Mapping[str, object],
        options: tuple[str, ...],
        listeners: Mapping[str, str],
    ) -> None:
        self._owner, self.settings, self._options, self._listeners = owner, dict(settings), options, dict(listeners)
        self._java, self._jars = maven.java(17), maven.jars("kafka-4.3.1", PACKAGES)
        if not owner.can_reach(self._jars):
            raise ServerUnavailable(
                f"user `nobody`, who runs Kafka for root, cannot enter {owner.obstacle(self._jars)}: "
                "set TAILRACE_CACHE to a folder that everybody can read"
            )
        self.folder = Path(tempfile.mkdtemp(prefix="tailrace-kafka-"))
        (self.folder / "log4j2.xml").write_text(LOGGING)
        owner.own(self.folder)
        self.nodes = [self._node(at + 1) for at in range(brokers)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def _node(self, number: int) -> Node:
        ports = {name: processes.free_port() for name in self._listeners}
        return Node(number, processes.free_port(), processes.free_port(), ports)

    @classmethod
    def start(
        cls,
        brokers: int = 1,
        settings: Mapping[str, object] | None = None,
        options: tuple[str, ...] = QUICK,
        listeners: Mapping[str, str] | None = None,
    ) -> Self:
        """The first start on a machine downloads the broker. `options` are those of its Java.

        `listeners` are more than the plain one: names, and their security protocols.
        """
        cluster = cls(brokers, Owner(), settings or {}, options, listeners or {})
        try:
            for node in cluster.nodes:
                cluster._format(node)
            cluster._run(cluster.nodes)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @property
    def servers(self) -> str:
        """What a client calls `bootstrap.servers`."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def url(self) -> str:
        return f"kafka://{self.servers}"

    def servers_of(self, listener: str, host: str = "127.0.0.1") -> str:
        return ",".join(f"{host}:{node.ports[listener]}" for node in self.nodes)

    def log_file(self, number: int = 1) -> Path:
        return self.folder / f"broker{number}.log"

    def pid(self, number: int = 1) -> int:
        return self._processes[number].pid

    def stop(self) -> None:
        """End all brokers, and remove their folder."""
        for node in self.nodes:
            self.kill(node.number)
        processes.remove_tree(self.folder)

    def kill(self, number: int = 1) -> None:
        """Crash a broker: SIGKILL. `restart` recovers."""
        if (process := self._processes.pop(number, None)) is not None:
            processes.kill_tree(process)

    def pause(self, number: int = 1) -> None:
        """It answers nobody, and nobody's connection breaks."""
        os.kill(self.pid(number), signal.SIGSTOP)

    def go_on(self, number: int = 1) -> None:
        os.kill(self.pid(number), signal.SIGCONT)

    def restart(self, number: int = 1, settings: Mapping[str, object] | None = None) -> None:
        """Crash a broker if it runs and start it on the same port, with `settings` laid over the earlier ones."""
        self.kill(number)
        self.settings |= settings or {}
        self._run([node for node in self.nodes if node.number == number])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, nodes: list[Node]) -> None:
        for node in nodes:
            command = [*self._program("-Xmx512m"), "kafka.Kafka", str(self._configured(node))]
            with self.log_file(node.number).open("ab") as log:
                self._processes[node.number] = processes.launch(command, self._owner, self.folder, log, _environment())
        for node in nodes:
            is_ready = functools.partial(self._is_ready, node)
            processes.wait_until(is_ready, seconds=START_SECONDS, what="Kafka to start", every=0.1)

    def _format(self, node: Node) -> None:
        """Give the broker's folder the cluster's id, as a new broker wants it."""
        command = [*self._program(), "kafka.tools.StorageTool", "format", "-t", CLUSTER]
        command += ["-c", str(self._configured(node))]
        with self.log_file(node.number).open("ab") as log:
            process = processes.launch(command, self._owner, self.folder, log, _environment())
            if process.wait(START_SECONDS) != 0:
                raise ServerFailed(f"Kafka cannot format:\n{processes.last_lines(self.log_file(node.number))}")

    def _program(self, *options: str) -> list[str]:
        # with -Xrs it ends with us: a JVM would take the signal for a request to show its threads
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}"
        return [self._java, "-Xrs", *options, *self._options, logging, "-cp", f"{self._jars}/*"]

    def _configured(self, node: Node) -> Path:
        path = self.folder / f"broker{node.number}.properties"
        lines = [f"{key}={value}" for key, value in (self._own_settings(node) | self.settings).items()]
        path.write_text("\n".join(lines) + "\n")
        self._owner.own(path)
        return path

    def _own_settings(self, node: Node) -> dict[str, object]:
        first, copies = self.nodes[0], min(len(self.nodes), 3)
        listeners = [f"{name}://127.0.0.1:{port}" for name, port in {"PLAINTEXT": node.port, **node.ports}.items()]
        advertised = ",".join(listeners)
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **self._listeners}
        if is_controller := node is first:
            listeners.append(f"CONTROLLER://127.0.0.1:{node.controller_port}")
        return {
            "process.roles": "broker,controller" if is_controller else "broker",
            "node.id": node.number,
            "controller.quorum.voters": f"1@127.0.0.1:{first.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "advertised.listeners": advertised,
            "listener.security.protocol.map": ",".join(f"{name}:{value}" for name, value in protocols.items()),
            "log.dirs": self.folder / f"broker{node.number}",
            "default.replication.factor": copies,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 2,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "broker.session.timeout.ms": 3000,
        }

    def _is_ready(self, node: Node) -> bool:
        if self._processes[node.number].poll() is not None:
            del self._processes[node.number]
            raise ServerFailed(f"Kafka did not start:\n{processes.last_lines(self.log_file(node.number))}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", node.port), timeout=1):
            return self._is_in_cluster(node)
        return False

    def _is_in_cluster(self, node: Node) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{node.port}", "log_level": 0})
        with contextlib.suppress(KafkaException):
            return node.number in client.list_topics(timeout=5).brokers
        return False


def _environment() -> dict[str, str]:
    left_out = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH", "LC_", "LANG")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
