"""Whether brokers can be reached, and why not: asked of a new client before anything else is.

An answer that does not come only says that. The reason is in what the client says beside it: a password or certificate
that is refused is told at once, as waiting does not mend it; brokers that are not there are waited for.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from tailrace.errors import ConfigError, SinkError, SinkRejected, SinkUnavailable
from tailrace.sinks.kafka.client import SECONDS
from tailrace.sinks.kafka.settings import KafkaSettings

STEP_SECONDS = 1.0
ABSENT_SECONDS = 5.0
"""How long brokers are asked of which nobody listens."""
REFUSALS = 2
"""So often we are turned away before it is believed."""
_PLACE = re.compile(r"^(?:\w+://)?(?P<place>[^/ ]+)/\S*: (?P<reason>.*?)(?: \(after \d+ms.*)?$", re.DOTALL)
_TURNED_AWAY = ("ssl alert number", "connecting to a plaintext broker listener")
_OF_OUR_CERTIFICATE = re.compile("alert.*(certificate|unknown ca|handshake failure)")


class Hearing:
    """What a client says beside its answers, since the last one that came. Pickles without it."""

    def __init__(self) -> None:
        self._heard: list[KafkaError] = []

    def __reduce__(self) -> tuple[type[Hearing], tuple[()]]:
        return Hearing, ()

    def note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._heard = [*self._heard[-9:], error]

    def forget(self) -> None:
        self._heard = []

    @property
    def last(self) -> KafkaError | None:
        return self._heard[-1] if self._heard else None

    def refused(self) -> KafkaError | None:
        """What turned us away, if that is all that was heard of late."""
        last = self._heard[-REFUSALS:]
        return last[-1] if len(last) == REFUSALS and all(_is_refusal(each) for each in last) else None


def _is_refusal(error: KafkaError) -> bool:
    is_alert = any(mark in error.str().lower() for mark in _TURNED_AWAY)
    return is_alert or error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL)


class Reaching:
    """Makes clients that have reached a broker. Pickles."""

    def __init__(self, client: dict[str, Any], settings: KafkaSettings, sink: str) -> None:
        self._client, self._settings, self._sink = client, settings, sink
        self._hearing = Hearing()

    def opened(self) -> AdminClient:
        """Raises SinkRejected where brokers turn us away, SinkUnavailable where none answers."""
        self._hearing.forget()
        admin = self._made()
        began_at = time.monotonic()
        while not _answers(admin):
            self._refuse(admin)
            waited = time.monotonic() - began_at
            if waited > SECONDS or (waited > ABSENT_SECONDS and self._is_nobody_there()):
                raise SinkUnavailable(f"sink {self._sink} did not answer: {self._reason()}")
        self._hearing.forget()
        return admin

    def judged(self, admin: AdminClient, error: SinkError) -> SinkError:
        """An answer that did not come, as what it means by what was heard meanwhile."""
        try:
            self._refuse(admin)
        except SinkRejected as refusal:
            return refusal
        return error if self._hearing.last is None else SinkUnavailable(f"{error} ({self._reason()})")

    def answered(self) -> None:
        self._hearing.forget()

    def _made(self) -> AdminClient:
        try:
            return AdminClient(self._client | {"error_cb": self._hearing.note})
        except KafkaException as error:  # a file that can not be read, a setting that there is not
            reason = error.args[0].str().partition(": ")[2]
            raise ConfigError(
                f"sinks.{self._sink}: the client of Kafka can not be made: {reason}",
                hint="correct `options` and the files of certificates and keys",
            ) from error

    def _refuse(self, admin: AdminClient) -> None:
        for _ in range(REFUSALS * 4):
            admin.poll(0)
        found = self._hearing.refused()
        if found is not None:
            raise _refusal(found, self._settings, self._sink)

    def _is_nobody_there(self) -> bool:
        last = self._hearing.last
        is_closed = last is not None and "connect to" in last.str().lower()
        return last is not None and (is_closed or last.code() == KafkaError._RESOLVE)

    def _reason(self) -> str:
        last = self._hearing.last
        if last is None:
            return "brokers close the connection, or say nothing; is `security` what their listener wants?"
        place, reason = _told(last)
        return f"{place}: {reason}"


def _answers(admin: AdminClient) -> bool:
    try:
        return bool(admin.list_topics(" ", timeout=STEP_SECONDS).brokers)  # no topic is called so
    except KafkaException:
        return False


def _told(error: KafkaError) -> tuple[str, str]:
    """Which broker it is about, and what is said of it."""
    found = _PLACE.match(error.str())
    return (found["place"], found["reason"]) if found else ("the brokers", error.str())


def _refusal(error: KafkaError, settings: KafkaSettings, sink: str) -> SinkRejected:
    place, reason = _told(error)
    text = reason.lower()
    if error.code() == KafkaError._AUTHENTICATION:
        message = f"sink {sink}: broker {place} does not let us in: {reason}"
        return SinkRejected(message, hint="correct user and password in the URL, sasl_mechanism and security")
    if "plaintext broker listener" in text:
        message = f"sink {sink}: broker {place} does not speak TLS at this port"
        return SinkRejected(message, hint="set security to plaintext or sasl_plaintext, or use its port for TLS")
    if _OF_OUR_CERTIFICATE.search(text):
        return _of_our_certificate(place, reason, settings, sink)
    return _of_its_certificate(place, reason, settings, sink)


def _of_our_certificate(place: str, reason: str, settings: KafkaSettings, sink: str) -> SinkRejected:
    if settings.certificate_file is None:
        message = f"sink {sink}: broker {place} wants a certificate of ours"
        return SinkRejected(message, hint="set certificate_file and key_file")
    message = f"sink {sink}: broker {place} does not accept our certificate: {reason}"
    return SinkRejected(message, hint="set certificate_file to one that a CA of the broker's truststore has signed")


def _of_its_certificate(place: str, reason: str, settings: KafkaSettings, sink: str) -> SinkRejected:
    host, _, port = place.rpartition(":")
    found = _mistrust(host.strip("[]"), int(port), settings.ca_file) if port.isdigit() else None
    if found is None:
        return SinkRejected(f"sink {sink}: no TLS with broker {place}: {reason}")
    if "mismatch" in found.lower():
        message = f"sink {sink}: the certificate of broker {place} is that of another host"
        return SinkRejected(message, hint="name the broker as its certificate does, in the URL or advertised.listeners")
    known = "of the system" if settings.ca_file is None else f"in {settings.ca_file}"
    message = f"sink {sink}: the certificate of broker {place} is signed by nobody whom we trust ({found})"
    return SinkRejected(message, hint=f"set ca_file to the certificate of the broker's CA: it is not {known}")


def _mistrust(host: str, port: int, ca_file: str | None) -> str | None:
    """What is wrong with a broker's certificate: the client of Kafka tells a wrong name and a wrong CA alike."""
    context = ssl.create_default_context(cafile=ca_file)
    try:
        with (
            socket.create_connection((host, port), timeout=STEP_SECONDS * 5) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        return error.verify_message.rstrip(".")
    except OSError:
        return None
