"""The names are those of the published semantic conventions."""

import pytest

from lockstep.otel import names

attributes = pytest.importorskip("opentelemetry.semconv._incubating.attributes.messaging_attributes")
metrics = pytest.importorskip("opentelemetry.semconv._incubating.metrics.messaging_metrics")
stable = pytest.importorskip("opentelemetry.semconv.attributes.error_attributes")


def test_names_are_those_of_the_conventions() -> None:
    own = {name: value for name, value in vars(names).items() if name.startswith(("MESSAGING_", "ERROR_"))}
    published = {**vars(attributes), **vars(metrics), **vars(stable)}
    assert len(own) > 15
    assert {name: published[name] for name in own} == own


def test_values_are_those_of_the_conventions() -> None:
    kinds = {each.value for each in attributes.MessagingRocketmqMessageTypeValues}
    assert {names.NORMAL, names.FIFO, names.DELAY, names.TRANSACTION} <= kinds
    assert {names.SEND, names.PROCESS} <= {each.value for each in attributes.MessagingOperationTypeValues}
    assert attributes.MessagingSystemValues.ROCKETMQ.value == names.ROCKETMQ
