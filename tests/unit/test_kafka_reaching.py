"""When brokers are believed to turn us away, and when they are only not there."""

from __future__ import annotations

import pickle

from confluent_kafka import KafkaError

from tailrace.sinks.kafka.reaching import Hearing

WRONG = KafkaError(KafkaError._AUTHENTICATION, "sasl://b1:1/bootstrap: SASL authentication error: no")
ABSENT = KafkaError(KafkaError._TRANSPORT, "b1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused")
ALERT = KafkaError(KafkaError._TRANSPORT, "ssl://b1:1/bootstrap: Receive failed: bad certificate: SSL alert number 42")
DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")


def heard(*errors: KafkaError) -> Hearing:
    hearing = Hearing()
    for error in errors:
        hearing.note(error)
    return hearing


def test_a_refusal_is_believed_when_it_is_repeated() -> None:
    assert heard(WRONG).refused() is None
    assert heard(WRONG, DOWN, WRONG).refused() is WRONG
    assert heard(ALERT, ALERT).refused() is ALERT


def test_a_broker_that_is_gone_meanwhile_is_no_refusal() -> None:
    assert heard(WRONG, WRONG, ABSENT).refused() is None
    assert heard(WRONG, ABSENT, WRONG).refused() is None


def test_an_answer_makes_it_forget() -> None:
    hearing = heard(WRONG, WRONG)
    hearing.forget()
    hearing.note(WRONG)
    assert hearing.refused() is None
    assert pickle.loads(pickle.dumps(heard(WRONG))).last is None
