"""A Kafka sink at brokers that ask who it is: each way in through a life of a sink, and each refusal as one sentence.

One broker has all the listeners, and an authorizer. Messages are read back by its plain listener.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka.admin import AdminClient

from support import kafka_reading
from support.kafka import KafkaCluster
from support.kafka_security import PASSWORD, USER, Authority, allow, needed
from tailrace import config
from tailrace.errors import ConfigError, SinkRejected, SinkUnavailable, TailraceError
from tailrace.sinks.kafka import KafkaSink
from tailrace.testing.change_sink_contract import apply, inserts
from tailrace.testing.processes import free_port
from tailrace.testing.sink_changes import ITEMS, watermark

pytestmark = [pytest.mark.server]

KEY_PASSWORD = "a k3y's own"
MakeKafka = Callable[..., KafkaSink]


@pytest.fixture
def make_sink(guarded_broker: KafkaCluster, guarded_prefix: str, tmp_path: Path) -> Iterator[MakeKafka]:
    made: list[KafkaSink] = []

    def make(listener: str, user: str = "", password: str = PASSWORD, host: str = "127.0.0.1", **own: Any) -> KafkaSink:
        login = f"{user}:{quote(password, safe='')}@" if user else ""
        places = f"127.0.0.1:{free_port()}" if listener == "nobody" else guarded_broker.servers_of(listener, host)
        sinks = {"out": config.Sink(f"kafka://{login}{places}", own={"prefix": guarded_prefix, **own})}
        source = config.Source("postgresql://localhost/shop", ("*.*",))
        made.append(KafkaSink(config.Pipeline("guarded", source, sinks, state=str(tmp_path)), "out"))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture
def files(authority: Authority) -> dict[str, dict[str, str]]:
    """Settings of TLS, by what they are good for."""
    certificate, key = authority.issue_files(USER, KEY_PASSWORD)
    trusting = {"ca_file": str(authority.file)}
    ours = {"certificate_file": str(certificate), "key_file": str(key), "key_password": KEY_PASSWORD}
    return {"TLS": trusting, "MTLS": trusting | ours}


def live(sink: KafkaSink, broker: KafkaCluster) -> None:
    """Claim, commit, read back; and another run that takes over."""
    sink.check()
    sink.claim("run")
    apply(sink, [[inserts(ITEMS, 1, (1, "a", None), (2, "b", None))]], 10)
    sink.close()
    sink.claim("another")
    apply(sink, [[inserts(ITEMS, 11, (3, "c", None))]], 20)
    found = kafka_reading.read(broker.servers, [sink.held_as(ITEMS)])
    assert [each.value["after"]["id"] for each in found] == [1, 2, 3]
    assert sink.read_state().watermark == watermark(20)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_with_a_password_gets_in(
    make_sink: MakeKafka, guarded_broker: KafkaCluster, guard: AdminClient, guarded_prefix: str, mechanism: str
) -> None:
    sink = make_sink("SASL", USER, sasl_mechanism=mechanism)
    allow(guard, *needed(guarded_prefix, sink._state.name))
    live(sink, guarded_broker)


def test_a_user_with_a_password_gets_in_through_tls(
    make_sink: MakeKafka,
    guarded_broker: KafkaCluster,
    guard: AdminClient,
    guarded_prefix: str,
    files: dict[str, dict[str, str]],
) -> None:
    sink = make_sink("SASLTLS", USER, security="sasl_ssl", sasl_mechanism="SCRAM-SHA-512", **files["TLS"])
    allow(guard, *needed(guarded_prefix, sink._state.name))
    live(sink, guarded_broker)


def test_tls_without_a_certificate_of_ours(
    make_sink: MakeKafka, guarded_broker: KafkaCluster, files: dict[str, dict[str, str]]
) -> None:
    live(make_sink("TLS", security="ssl", **files["TLS"]), guarded_broker)  # nobody is asked who it is


def test_a_certificate_of_ours_is_who_we_are(
    make_sink: MakeKafka,
    guarded_broker: KafkaCluster,
    guard: AdminClient,
    guarded_prefix: str,
    files: dict[str, dict[str, str]],
) -> None:
    sink = make_sink("MTLS", security="ssl", **files["MTLS"])
    allow(guard, *needed(guarded_prefix, sink._state.name))
    live(sink, guarded_broker)


# --- turned away


def refused(sink: KafkaSink, kind: type[TailraceError] = SinkRejected) -> TailraceError:
    """What everything that begins with a sink says, in one line, without a secret."""
    with pytest.raises(kind) as found:
        sink.check()
    with pytest.raises(kind):
        sink.claim("run")
    said = f"{found.value} {found.value.hint}"
    assert "\n" not in said
    assert PASSWORD not in said
    assert KEY_PASSWORD not in said
    return found.value


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_told_at_once(make_sink: MakeKafka, mechanism: str) -> None:
    sink = make_sink("SASL", USER, "wr0ng", sasl_mechanism=mechanism)
    error = refused(sink)
    assert "does not let us in" in str(error)
    assert "correct user and password" in str(error.hint)
    assert "wr0ng" not in f"{error} {error.hint}"


def test_brokers_of_a_ca_that_we_do_not_know_are_not_trusted(make_sink: MakeKafka, authority: Authority) -> None:
    other = Authority(authority.folder, "other").file
    error = refused(make_sink("TLS", security="ssl", ca_file=str(other)))
    assert "signed by nobody whom we trust" in str(error)
    assert error.hint == f"set ca_file to the certificate of the broker's CA: it is not in {other}"


def test_a_certificate_of_another_host_is_told_as_such(make_sink: MakeKafka, files: dict[str, dict[str, str]]) -> None:
    error = refused(make_sink("TLS", host="localhost", security="ssl", **files["TLS"]))
    assert "is that of another host" in str(error)


def test_a_certificate_of_ours_that_is_missing_is_asked_for(
    make_sink: MakeKafka, files: dict[str, dict[str, str]]
) -> None:
    error = refused(make_sink("MTLS", security="ssl", **files["TLS"]))
    assert ("wants a certificate of ours" in str(error), error.hint) == (True, "set certificate_file and key_file")


def test_a_certificate_of_ours_that_nobody_knows_is_told(
    make_sink: MakeKafka, files: dict[str, dict[str, str]], authority: Authority
) -> None:
    certificate, key = Authority(authority.folder, "stranger").issue_files("mallory", KEY_PASSWORD)
    own = files["MTLS"] | {"certificate_file": str(certificate), "key_file": str(key)}
    assert "does not accept our certificate" in str(refused(make_sink("MTLS", security="ssl", **own)))


def test_tls_at_a_port_without_it_is_told(make_sink: MakeKafka, files: dict[str, dict[str, str]]) -> None:
    assert "does not speak TLS" in str(refused(make_sink("SASL", security="ssl", **files["TLS"])))


@pytest.mark.parametrize(
    "own",
    [{"ca_file": "/nowhere/ca.pem"}, {"key_password": "not it"}, {"options": {"no.such.thing": 1}}],
    ids=["a file that is not there", "a wrong password of the key", "an option that there is not"],
)
def test_settings_of_the_client_that_can_not_be_are_told(
    make_sink: MakeKafka, files: dict[str, dict[str, str]], own: dict[str, Any]
) -> None:
    error = refused(make_sink("MTLS", security="ssl", **(files["MTLS"] | own)), ConfigError)
    assert "can not be made" in str(error)
    assert "not it" not in str(error)


def test_brokers_that_are_not_there_are_waited_for(make_sink: MakeKafka) -> None:
    error = refused(make_sink("nobody"), SinkUnavailable)
    assert (error.retry, "Connection refused" in str(error)) == (True, True)
