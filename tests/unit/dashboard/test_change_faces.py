"""Both faces of each declared change, command and form, have its fields, and the command line of a form is read as the same change."""

import shlex
from contextlib import nullcontext
from typing import Any

import pytest

from lockstep.cli import change_command
from lockstep.dashboard.changes.forms import NUMBER_MAX, Field, Form, form_of
from lockstep.operations.changes.broker_drain import BrokerRemove
from lockstep.operations.changes.broker_settings import BrokerConfigSet
from lockstep.operations.changes.catalogue import CHANGES
from lockstep.operations.changes.group_reset import GroupReset
from lockstep.operations.changes.group_settings import GroupUpdate
from lockstep.operations.changes.operation import SHOWN_MAX, Declared, Operation, Option
from lockstep.operations.changes.park_change import DropTarget, ParkDrop, ParkReplay
from lockstep.operations.changes.replay import DeadLetterReplay, ReplayTarget
from lockstep.operations.changes.replica_forget import ReplicaForget
from lockstep.operations.changes.replica_promote import ReplicaPromote
from lockstep.operations.changes.send import MessageSend
from lockstep.operations.changes.topic_alter import TopicAlter
from lockstep.operations.changes.topic_create import TopicCreate
from lockstep.operations.changes.topic_forget_deleted import TopicForgetDeleted
from lockstep.operations.changes.topic_purge import TopicPurge
from lockstep.operations.changes.waiting.timer_recall import TimerRecall
from lockstep.operations.changes.waiting.transaction_end import TransactionCommit, TransactionRollback
from lockstep.protocol.bodies import SubscriptionPolicy
from lockstep.protocol.errors import ConfigError
from support.commands import every_command

FILLED: list[Operation] = [
    TopicCreate(topic="-orders", queues=7, broker=("broker-a", "-b")),
    TopicAlter(topic="orders", write_queues=0, read_queues=3),
    TopicAlter(topic="orders", broker=("a",), move_to="b"),
    MessageSend(topic="orders", sharding_key=" -k 'x' ", keys=("a", "b"), body=b"--help", properties=("a=b",)),
    GroupReset(group="billing", to="-1h", queue=("a:0", "a:1"), drop_parked=True),
    GroupUpdate(group="billing", consume=False, subscription_policy=SubscriptionPolicy.CLASSIC, next_contract_version=0),
    GroupUpdate(group="billing", consume=True),
    ParkReplay(group="billing", every=True, topic="orders"),
    ParkDrop(group="billing", key="--all", to=DropTarget.DLQ),
    DeadLetterReplay(group="billing", to=ReplayTarget.TOPIC, rate=5, every=True),
    TopicPurge(topic="orders", to="-1h", queue=("a:0", "a:1"), force=True),
    TopicForgetDeleted(every=True),
    BrokerRemove(name="broker-a", force=True),
    BrokerConfigSet(changes=("retention_hours=24", "a=-b"), every=True),
    ReplicaPromote(address="10.0.0.2:10911", force=True, yes=True),
    ReplicaForget(broker="-a", member="0123456789abcdef", yes=True),
    TimerRecall(handle="djEgYQ=="),
    TimerRecall(topic="orders", key="-k", yes=True),
    TransactionCommit(transaction_id="0ddf15a9", reason="paid by phone", yes=True),
    TransactionRollback(transaction_id="0ddf15a9"),
]


def read(line: str, monkeypatch: pytest.MonkeyPatch) -> Operation:
    """Return the change that a command line specifies, without carrying it out."""
    found: list[Operation] = []

    def note(operation: Operation, *_: object, **__: object) -> None:
        found.append(operation)

    monkeypatch.setattr(change_command, "carry_out", note)
    monkeypatch.setattr(change_command, "run", lambda work: None)
    every_command()(shlex.split(line)[1:], standalone_mode=False)
    return found[0]


@pytest.mark.parametrize("operation", FILLED, ids=lambda operation: " ".join(operation.words))
def test_command_line_is_read_as_the_same_change(operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(operation.command_line, monkeypatch) == operation


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_each_change_has_a_command_with_its_fields_and_a_dry_run(change: type[Operation]) -> None:
    below: Any = every_command()
    for word in change.words:
        below = below.commands[word]
    taken = {flag for parameter in below.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    flags = {
        flag
        for each in change.declared()
        if isinstance(each.parameter, Option)
        for part in each.parameter.flags
        for flag in part.split("/")
    }
    assert flags | {"--dry-run", "--json", "--nameserver"} <= taken
    assert change.__doc__ is not None
    assert below.help.startswith(change.__doc__.splitlines()[0])


FORMS = [each for each in map(form_of, CHANGES) if each.title]
ALTERNATIVES = {"timer-recall"}
"""Forms that require one of several fields, which their plan checks."""


@pytest.mark.parametrize("form", [each for each in FORMS if each.name not in ALTERNATIVES], ids=lambda form: form.name)
def test_form_without_what_it_requires_is_refused_by_name(form: Form) -> None:
    required = [each for each in form.fields if each.declared.required and each.declared.kind is str]
    assert required
    for each in required:
        values = {**form.filled({field.name: "1" for field in required}), each.name: "  "}
        with pytest.raises(ConfigError, match=f"{each.name} is missing"):
            form.operation(values)


SENT = MessageSend(topic="t", sharding_key=" k", body="é".encode(), keys=("a", "b"), properties=("sent_by=lockstep-dashboard",))


@pytest.mark.parametrize(
    ("change", "values", "operation"),
    [
        (TopicCreate, {"topic": " t ", "queues": "12", "broker": ""}, TopicCreate(topic="t", queues=12)),
        (
            MessageSend,
            {"topic": "t", "sharding_key": " k", "body": "é", "keys": "a  b"},
            MessageSend(topic="t", sharding_key=" k", body="é".encode(), keys=("a", "b"), properties=("sent_by=lockstep-dashboard",)),
        ),
        (ParkDrop, {"group": "g", "key": ""}, ParkDrop(group="g", every=True, to=DropTarget.DLQ)),
        (ParkReplay, {"group": "g", "key": "k"}, ParkReplay(group="g", key="k")),
        (DeadLetterReplay, {"group": "g", "every": "all", "to": "retry"}, DeadLetterReplay(group="g", every=True, to=ReplayTarget.RETRY)),
        (GroupUpdate, {"group": "g", "consume": "no"}, GroupUpdate(group="g", consume=False)),
        (ReplicaPromote, {"address": " a:1 "}, ReplicaPromote(address="a:1", yes=True)),
        (ReplicaForget, {"broker": "a", "member": "m"}, ReplicaForget(broker="a", member="m", yes=True)),
        (TimerRecall, {"handle": " h ", "topic": "t"}, TimerRecall(handle="h", yes=True)),
        (TimerRecall, {"topic": "t", "key": "k"}, TimerRecall(topic="t", key="k", yes=True)),
        (TimerRecall, {"handle": "h", "topic": "t", "key": "k"}, TimerRecall(handle="h", topic="t", key="k", yes=True)),
    ],
)
def test_filled_form_is_the_change(change: type[Operation], values: dict[str, str], operation: Operation) -> None:
    form = form_of(change)
    assert form.operation(form.filled(values)) == operation


@pytest.mark.parametrize(
    ("change", "field", "text", "words"),
    [
        (TopicCreate, "queues", "0", "queues is '0': expected a whole number from 1 to "),
        (TopicCreate, "queues", "٣", "expected a whole number"),
        (TopicCreate, "queues", "", "queues is missing"),
        (GroupUpdate, "consume", "maybe", "consume is 'maybe': expected one of"),
        (DeadLetterReplay, "to", "DLQ", "to is 'DLQ': expected one of , retry, topic"),
        (GroupReset, "drop_parked", "", "drop_parked is '': expected one of no, yes"),
    ],
)
def test_value_that_the_field_can_not_have_is_refused_by_name(change: type[Operation], field: str, text: str, words: str) -> None:
    form = form_of(change)
    with pytest.raises(ConfigError) as raised:
        form.operation({**form.filled({"topic": "t", "group": "g", "to": "end"} if field != "to" else {"group": "g"}), field: text})
    assert words in str(raised.value)


def test_body_that_no_command_line_can_have_is_read_from_standard_input() -> None:
    assert [MessageSend(topic="t", body=body).command[-1] for body in (b"x", b"two\nlines", b"\xff", b"x" * (SHOWN_MAX + 1))] == [
        "x",
        "-",
        "-",
        "-",
    ]


@pytest.mark.parametrize(
    ("text", "fits"), [("0", True), (str(NUMBER_MAX), True), (str(NUMBER_MAX + 1), False), ("9" * 20, False), ("-1", False)]
)
def test_number_without_a_limit_is_any_offset(text: str, fits: bool) -> None:
    field = Field(Declared("offset", int, Option(flags=("--offset",), help="An offset.", label="Offset"), True, None))
    with nullcontext() if fits else pytest.raises(ConfigError, match=f"from 0 to {NUMBER_MAX}"):
        assert field.parse(text) == int(text)
