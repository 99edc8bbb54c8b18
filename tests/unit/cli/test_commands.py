"""The commands as users and scripts run them: arguments in; stdout, one line on stderr and an exit code out."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.cli import main as cli
from lockstep.protocol.bodies import ConsumerGroup, GroupStatus, ListVersion, MemberStatus, OffsetRange, QueueStatus, Subscription
from lockstep.protocol.errors import ServiceNotAvailableError, TopicNotExistError
from lockstep.protocol.messages.ids import offset_message_id
from lockstep.protocol.messages.message import Message
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.fake_broker import STORE_HOST, FakeBroker, ThreadedCluster, stored

ORDERS = TopicLayout("orders", LayoutVersion(1, 7), (LayoutEntry("broker-a", 2, 2, 1), LayoutEntry("broker-b", 2, 2, 1)))
SESSION = MemberStatus("10.0.0.9@77#0123456789abcdef", "89abcdef", "10.0.0.9:5555", True, 400)


def status(*queues: QueueStatus, members: tuple[MemberStatus, ...] = (SESSION,)) -> GroupStatus:
    contract = ConsumerGroup("billing", (Subscription("orders", "created || paid"),), ordered=True)
    return GroupStatus("billing", ListVersion(1, 1), contract, members, queues, grants=0)


def queue(queue_id: int, *, committed: int = 5, end: int = 9, owner: str | None = SESSION.client_id) -> QueueStatus:
    return QueueStatus("orders", queue_id, owner, (7 << 32) + 1, 0, committed, end, 0, 1_500, None, parked=0, disk_pulls=0)


@pytest.fixture
def cluster() -> Iterator[ThreadedCluster]:
    a = FakeBroker("broker-a", layouts={"orders": ORDERS}, groups={"billing": status(queue(0), queue(1, committed=-1, owner=None))})
    b = FakeBroker("broker-b", layouts={"orders": ORDERS}, groups={"billing": status(queue(0), members=())})
    for broker in (a, b):
        broker.offsets["orders"] = [OffsetRange(0, 0, 9), OffsetRange(1, 3, 9)]
    with ThreadedCluster(a, b) as made:
        yield made


class Run:
    """Runs a command and stores its exit code and output."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        self.code = ended.value.code or 0
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def lockstep(cluster: ThreadedCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LOCKSTEP_NAMESERVER", cluster.nameserver)
    return lambda *arguments: Run(capsys, *arguments)


def assert_failed(run: Run, *words: str, code: int = 1) -> None:
    """A failing request prints one line and exits with 1; a value that is never possible, in any state of the cluster, exits with 2."""
    assert run.code == code
    assert run.err.startswith("lockstep: ")
    assert run.err.count("\n") == 1, run.err
    for word in words:
        assert word in run.err


def test_version_names_the_form_of_the_kernels_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(capsys, "--version")
    assert run.code == 0
    assert re.fullmatch(r"lockstep \d+\.\d+\.\d+ \((native kernels|pure Python: .+)\)\n", run.out)


def test_nameserver_option_overrides_the_environment(
    cluster: ThreadedCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_NAMESERVER", "127.0.0.1:1")
    assert Run(capsys, "cluster", "--json", "--nameserver", cluster.nameserver).code == 0


def test_unreachable_nameserver_is_skipped_for_the_next(lockstep: Any, cluster: ThreadedCluster) -> None:
    assert lockstep("topic", "list", "--nameserver", f"127.0.0.1:1;{cluster.nameserver}").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("cluster",),
        ("topic", "list"),
        ("group", "list"),
        ("group", "show", "g"),
        ("tail", "t"),
        ("send", "t", "b"),
        ("topic", "create", "t"),
    ],
)
def test_without_a_nameserver_each_command_fails_with_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert_failed(Run(capsys, *arguments, "--nameserver", "127.0.0.1:1"), "127.0.0.1:1")


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create"),
        ("nothing",),
        ("topic", "create", "t", "--queues", "0"),
        ("message",),
        ("tail", "t", "--count", "0"),
        ("tail", "t", "--offset", "5"),
        ("tail", "t", "--offset", "-1", "--queue", "broker-a:0"),
        ("tail", "t", "--offset", "5", "--queue", "broker-a:0", "--queue", "broker-a:1"),
        ("tail", "t", "--from-start", "--since", "2h"),
        ("tail", "t", "--since", "1500"),
        ("bench", "--flush", "maybe"),
    ],
)
def test_usage_error_exits_with_code_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert Run(capsys, *arguments).code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("group", "reset-offset", "billing", "--to", "yesterday"), "--to 'yesterday': expected beginning, end"),
        (("group", "reset-offset", "billing", "--to", "999999999999d"), "before 1970-01-01"),
        (("group", "reset-offset", "billing", "--to", "end", "--queue", "0"), "--queue '0': expected BROKER:NUMBER"),
        (
            ("group", "update", "billing"),
            "nothing to change: use --subscription-policy, --consume, --no-consume or --next-contract-version",
        ),
        (("topic", "alter", "orders"), "the number of queues is missing: use --queues N"),
        (("send", "orders", "body", "--property", "tenant"), "property 'tenant': expected NAME=VALUE"),
    ],
)
def test_invalid_value_exits_with_code_2_and_one_line(lockstep: Any, arguments: tuple[str, ...], words: str) -> None:
    assert_failed(lockstep(*arguments), words, code=2)


def test_broker_address_given_as_nameserver_is_reported(cluster: ThreadedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    address = cluster.brokers["broker-a"].address
    assert_failed(Run(capsys, "topic", "list", "--nameserver", address), address, "is it a nameserver's address")


@pytest.mark.parametrize("arguments", [("topic", "list"), ("broker",)])
def test_ctrl_c_during_the_loading_of_a_command_prints_no_traceback(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lockstep.cli.app.app", interrupted)
    monkeypatch.setattr(cli, "serve", interrupted)
    run = Run(capsys, *arguments)
    assert (run.code, run.out, run.err) == (130, "", "")


def test_topic_show_prints_the_bounds_of_each_queue_in_layout_order(lockstep: Any) -> None:
    queues = lockstep("topic", "show", "orders", "--json").json["queues"]
    assert [(q["number"], q["broker"], q["queue_id"], q["min_offset"], q["max_offset"]) for q in queues] == [
        (0, "broker-a", 0, 0, 9),
        (1, "broker-a", 1, 3, 9),
        (2, "broker-b", 0, 0, 9),
        (3, "broker-b", 1, 3, 9),
    ]
    assert lockstep("topic", "show", "orders").out.splitlines()[0] == "topic orders: 4 queues to write, 4 to read, layout version 1"


def test_result_without_one_broker_is_printed_with_exit_code_1(lockstep: Any, cluster: ThreadedCluster) -> None:
    cluster.brokers["broker-b"].offsets.clear()
    run = lockstep("topic", "show", "orders", "--json")
    assert_failed(run, "broker-b", "incomplete")
    assert [q["max_offset"] for q in run.json["queues"]] == [9, 9, None, None]


def test_topic_create_does_not_change_an_existing_topic(lockstep: Any, cluster: ThreadedCluster) -> None:
    same = lockstep("topic", "create", "orders", "--queues", "2")
    assert (same.code, same.out) == (0, "topic orders exists already: 2 queues on broker-a, 2 queues on broker-b\n")
    assert_failed(lockstep("topic", "create", "orders", "--queues", "3"), "exists", "2 queues on broker-a")
    assert cluster.brokers["broker-a"].created == []


def test_broker_that_rejects_a_change_is_not_reported_as_unreachable(lockstep: Any, cluster: ThreadedCluster) -> None:
    cluster.brokers["broker-b"].refusal = ServiceNotAvailableError("the disk is full")
    run = lockstep("topic", "delete", "orders")
    assert (run.code, run.out.splitlines()[0][:23]) == (0, "topic orders is deleted")
    assert run.err.startswith("lockstep: broker broker-b rejected the change (SERVICE_NOT_AVAILABLE: the disk is full)")
    assert "did not respond" not in run.err


def test_deletion_rejected_by_every_broker_names_the_next_step(lockstep: Any, cluster: ThreadedCluster) -> None:
    for broker in cluster.brokers.values():
        broker.refusal = TopicNotExistError("no topic orders")
    run = lockstep("topic", "delete", "orders")
    assert run.code == 1
    assert "broker broker-a has no topic orders: it was deleted, or is not known" in run.err
    assert "see `lockstep topic show orders`" in run.err


@pytest.mark.parametrize("arguments", [("delete", "SCHEDULE_TOPIC_XXXX"), ("alter", "SCHEDULE_TOPIC_XXXX", "--queues", "2")])
def test_topic_of_the_brokers_is_neither_altered_nor_deleted(lockstep: Any, arguments: tuple[str, ...]) -> None:
    run = lockstep("topic", *arguments)
    assert_failed(run, "SCHEDULE_TOPIC_XXXX is used by the brokers internally")
    assert "create" not in run.err


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("%RETRY%billing", "holds the messages that wait for a retry of group billing"),
        ("%DLQ%billing", "holds the dead letters of group billing"),
    ],
)
def test_group_topic_is_deleted_only_with_force(lockstep: Any, cluster: ThreadedCluster, topic: str, words: str) -> None:
    cluster.hold(TopicLayout(topic, LayoutVersion(1, 7), (LayoutEntry("broker-a", 1, 1, 1),)))
    assert topic in lockstep("topic", "list").out
    assert_failed(lockstep("topic", "delete", topic), "nothing was changed", words, "--force")
    assert cluster.brokers["broker-a"].created == []
    assert lockstep("topic", "delete", topic, "--force").out.startswith(f"topic {topic} is deleted")
    assert_failed(lockstep("topic", "delete", topic), "does not exist")


def test_dead_letters_beyond_the_limit_are_counted(lockstep: Any, cluster: ThreadedCluster) -> None:
    topic = "%DLQ%billing"
    cluster.hold(TopicLayout(topic, LayoutVersion(1, 7), tuple(LayoutEntry(name, 1, 1, 1) for name in cluster.brokers)))
    for broker, count in zip(cluster.brokers.values(), (5, 2), strict=True):
        broker.offsets[topic] = [OffsetRange(0, 0, count)]
        broker.records[topic, 0] = [stored(Message(topic, b"b%d" % n), 0, n, n * 200) for n in range(count)]
    cut = lockstep("dlq", "ls", "billing", "--limit", "3")
    assert cut.out.splitlines()[-1] == "the newest 5 of 7, at most 3 of each broker; pass --limit N to list more"
    shown = lockstep("dlq", "ls", "billing", "--limit", "3", "--json").json
    assert (shown["stored"], [letter["body"] for letter in shown["dead_letters"]]) == (7, ["b2", "b3", "b4", "b0", "b1"])
    assert "newest" not in lockstep("dlq", "ls", "billing", "--limit", "5").out


def test_group_list_names_the_brokers_of_each_group(lockstep: Any) -> None:
    line = {"group": "billing", "kind": "ordered", "members": 1, "lag": 0, "brokers": ["broker-a", "broker-b"]}
    assert lockstep("group", "list", "--json").json == {"groups": [line], "failed": {}}
    assert "billing" in lockstep("group", "list").out


def test_group_show_prints_owner_progress_lag_and_contract(lockstep: Any) -> None:
    shown = lockstep("group", "show", "billing", "--json").json
    assert [(q["broker"], q["queue_id"], q["owner"], q["committed_offset"], q["lag"]) for q in shown["queues"]] == [
        ("broker-a", 0, SESSION.client_id, 5, 4),
        ("broker-a", 1, None, None, 9),
        ("broker-b", 0, SESSION.client_id, 5, 4),
    ]
    assert shown["queues"][0]["epoch"] == str((7 << 32) + 1)
    assert [(m["client_id"], m["session"], m["missing_at"]) for m in shown["members"]] == [(SESSION.client_id, "89abcdef", ["broker-b"])]
    assert (shown["ordered"], shown["lag"]) == (True, 17)
    table = lockstep("group", "show", "billing").out
    assert table.splitlines()[0] == "group billing: ordered, members: 1, lag: 17"
    for word in (SESSION.client_id, "89abcdef", "orders: created || paid", "1.5 s"):
        assert word in table


def test_group_show_lists_the_queues_of_an_unreachable_broker(lockstep: Any, cluster: ThreadedCluster) -> None:
    cluster.run(cluster.brokers["broker-b"].stop())
    table = lockstep("group", "show", "billing")
    assert_failed(table, "incomplete", "broker-b")
    assert table.out.splitlines()[0] == "group billing: ordered, members: 1, lag: 13, without broker-b, which could not be reached"
    rows = [line.split() for line in table.out.splitlines() if "orders  broker-b" in line]
    assert [" ".join(row) for row in rows] == [f"orders broker-b {n} broker not reached - - - - - - -" for n in (0, 1)]
    shown = lockstep("group", "show", "billing", "--json").json
    assert [(q["broker"], q["reached"]) for q in shown["queues"]] == [("broker-a", True)] * 2 + [("broker-b", False)] * 2
    assert list(shown["failed"]) == ["broker-b"]


def test_group_without_members_is_reported_once(lockstep: Any, cluster: ThreadedCluster) -> None:
    for broker in cluster.brokers.values():
        broker.groups["billing"] = GroupStatus("billing", ListVersion(1, 1), None, (), (queue(0, owner=None),), grants=0)
    table = lockstep("group", "show", "billing")
    assert (table.code, table.err) == (0, "")
    assert table.out.startswith("group billing: no members, lag: 8\n")
    assert table.out.count("members") == 1


def test_message_show_queries_all_brokers_and_never_connects_to_the_address_in_the_id(lockstep: Any, cluster: ThreadedCluster) -> None:
    record = stored(Message("orders", b"created \x1b[31m", tags="created", keys=["k1"], properties={"tenant": "a"}), 1, 3, 4_096)
    cluster.brokers["broker-a"].by_position[4_096] = stored(Message("orders", b"other"), 0, 0, 4_096, store_host="10.9.8.6:10911")
    cluster.brokers["broker-b"].by_position[4_096] = record
    message_id = offset_message_id(STORE_HOST, 4_096)
    found = lockstep("message", "show", message_id.lower(), "--json").json
    assert (found["broker"], found["queue_id"], found["queue_offset"], found["offset_message_id"]) == ("broker-b", 1, 3, message_id)
    assert (found["tags"], found["keys"], found["properties"]["tenant"]) == ("created", ["k1"], "a")
    assert "created \\x1b[31m" in lockstep("message", "show", message_id).out
    assert_failed(lockstep("message", "show", message_id, "--broker", "broker-a"), "is there")
    assert_failed(lockstep("message", "show", message_id, "--broker", "broker-x"), "broker-x", "broker-a, broker-b")


def test_message_show_needs_the_broker_if_two_messages_have_one_id(lockstep: Any, cluster: ThreadedCluster) -> None:
    """Logs that are older than brokers with DNS names have store hosts of their own."""
    for name, broker in cluster.brokers.items():
        broker.by_position[4_096] = stored(Message("orders", name.encode()), 0, 0, 4_096, store_host="0.0.0.0:0")
    message_id = offset_message_id("0.0.0.0:0", 4_096)
    assert_failed(lockstep("message", "show", message_id), "2 messages have the id", "broker-a, broker-b", "--broker")
    for name in cluster.brokers:
        assert lockstep("message", "show", message_id, "--broker", name, "--json").json["body"] == name


def test_message_show_reports_what_each_broker_has_if_no_message_has_the_id(lockstep: Any, cluster: ThreadedCluster) -> None:
    cluster.brokers["broker-a"].by_position[4_096] = stored(Message("orders", b"other"), 0, 0, 4_096)
    run = lockstep("message", "show", offset_message_id("250.1.2.3:7", 4_096))
    other = offset_message_id(STORE_HOST, 4_096)
    assert_failed(run, "the store with the id 250.1.2.3:7", f"broker-a: message {other} is there", "broker-b: ", "no message at 4096")
    assert_failed(lockstep("message", "show", offset_message_id("10.1.2.3:7", 8)), "the broker at 10.1.2.3:7", "no message at 8")


def test_message_show_finds_a_message_while_another_broker_is_down(lockstep: Any, cluster: ThreadedCluster) -> None:
    cluster.brokers["broker-b"].by_position[4_096] = stored(Message("orders", b"here"), 0, 0, 4_096)
    cluster.run(cluster.brokers["broker-a"].stop())
    assert lockstep("message", "show", offset_message_id(STORE_HOST, 4_096), "--json").json["body"] == "here"


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        (("message", "show"), "lockstep message show [OPTIONS] MSGID"),
        (("topic", "show"), "lockstep topic show [OPTIONS] TOPIC"),
        (("group", "show"), "lockstep group show [OPTIONS] GROUP"),
        (("send",), "lockstep send [OPTIONS] TOPIC BODY"),
        (("tail",), "lockstep tail [OPTIONS] TOPIC"),
    ],
)
def test_usage_uses_the_argument_names_of_the_documentation(lockstep: Any, command: tuple[str, ...], usage: str) -> None:
    for arguments in (command, (*command, "--help")):
        run = lockstep(*arguments)
        assert [line.strip() for line in (run.out + run.err).splitlines() if "[OPTIONS]" in line] == [f"Usage: {usage}"], arguments


def test_tail_with_a_comma_in_a_tag_suggests_the_syntax_for_several(lockstep: Any, cluster: ThreadedCluster) -> None:
    cluster.brokers["broker-a"].records["orders", 0] = [stored(Message("orders", b"x", tags="a, b"), 0, 0, 4_096)]
    run = lockstep("tail", "orders", "--from-start", "--tag", "a, b", "--count", "1")
    assert (run.code, run.out.count("\n")) == (0, 1), "one tag, as it says"
    assert "lockstep: --tag: 'a, b' is matched as one tag; write several tags as 'a || b'\n" in run.err


@pytest.mark.parametrize("message_id", ["7F0000011A2B18B4AAC20123456789A", "nonsense", ""])
def test_invalid_message_id_is_rejected(lockstep: Any, message_id: str) -> None:
    assert_failed(lockstep("message", "show", message_id), "message id", code=2)


def test_tail_prints_stored_messages_and_stops_after_count(lockstep: Any, cluster: ThreadedCluster) -> None:
    for name, broker in cluster.brokers.items():
        broker.records["orders", 0] = [stored(Message("orders", f"{name} {n}".encode(), tags="t"), 0, n, n * 200) for n in range(2)]
        broker.offsets["orders"] = [OffsetRange(0, 0, 2), OffsetRange(1, 0, 0)]
    run = lockstep("tail", "orders", "--from-start", "--count", "4", "--json")
    assert run.code == 0, run.err
    lines = [json.loads(line) for line in run.out.splitlines()]
    assert sorted((line["broker"], line["queue_offset"], line["body"]) for line in lines) == [
        (name, n, f"{name} {n}") for name in ("broker-a", "broker-b") for n in range(2)
    ]
    assert "reading 4 queues of orders" in run.err


def test_tail_filters_by_tag_and_starts_at_the_end_of_each_queue(lockstep: Any, cluster: ThreadedCluster) -> None:
    old, other, new = (
        stored(Message("orders", body, tags=tag), 0, n, n) for n, (body, tag) in enumerate([(b"old", "t"), (b"no", "u"), (b"new", "t")])
    )
    cluster.brokers["broker-a"].records["orders", 0] = [old, other, new]
    cluster.brokers["broker-a"].offsets["orders"] = [OffsetRange(0, 0, 1), OffsetRange(1, 0, 0)]
    cluster.brokers["broker-b"].offsets["orders"] = [OffsetRange(0, 0, 0), OffsetRange(1, 0, 0)]
    run = lockstep("tail", "orders", "--tag", "t", "--count", "1")
    assert run.out.endswith("  new\n")
    assert run.out.count("\n") == 1


def test_tail_without_follow_fails_if_a_broker_does_not_respond(lockstep: Any, cluster: ThreadedCluster) -> None:
    cluster.run(cluster.brokers["broker-b"].stop())
    assert_failed(lockstep("tail", "orders", "--from-start", "--no-follow"), "the result is incomplete", "broker-b")


@pytest.mark.parametrize("server", ["nameserver", "broker"])
def test_server_command_has_its_own_arguments(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(capsys, server, "--help")
    assert run.code == 0
    assert f"lockstep {server}" in run.out
    assert "--listen" in run.out
