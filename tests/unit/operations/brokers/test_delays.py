"""What waits, over several brokers: sums, brokers that are left out, the picture, and the command."""

import json
from xml.etree.ElementTree import Element
from xml.etree.ElementTree import fromstring as parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.cli.commands.delays import _delays
from lockstep.client import Message, Producer
from lockstep.operations.brokers.delays import (
    BUCKETS,
    LATE_MS,
    DelayLine,
    DelayReport,
    delay_report,
    delays_json,
    due_name,
)
from lockstep.operations.brokers.rates import Looks
from lockstep.operations.errors import OperationError
from lockstep.operations.pictures.due import LABEL, LENGTH, WIDTH, due_picture
from lockstep.protocol.bodies import BrokerStatus, DelayFigures, Overview
from lockstep.protocol.delays import DUE_WITHIN_MS
from lockstep.testing import TestCluster
from support.delayed import send_delayed

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>]]>&\"'\u202e"


def look(*delays: DelayFigures) -> Overview:
    status = BrokerStatus("broker-a", "c", "00", 1, {}, 0, 0, 0, 0, 0, 0, (), 1_024, 0, 0, 0, 5, 0)
    return Overview(status, 0, 0, 0, (), 0, (), (), (), delays)


COUNTS = st.lists(st.integers(0, 1_000), min_size=BUCKETS, max_size=BUCKETS).map(tuple)
FIGURES = st.builds(
    lambda delay_ms, due, first_due_ms: DelayFigures(delay_ms, sum(due), first_due_ms, due),
    st.sampled_from((1_000, 60_000, 7_200_000)),
    COUNTS,
    st.none() | st.integers(-100_000, 100_000),
)
UNTIMED = st.builds(lambda delay_ms, waiting: DelayFigures(delay_ms, waiting, None, None), st.just(5_000), st.integers(1, 1_000))
OTHER_BUCKETS = st.builds(lambda waiting: DelayFigures(9_000, waiting, 5, (waiting,)), st.integers(1, 1_000))
LOOKS: st.SearchStrategy[Looks] = st.dictionaries(
    st.sampled_from("abcd"),
    st.one_of(
        st.just("it does not respond"),
        st.lists(FIGURES | UNTIMED | OTHER_BUCKETS, max_size=6).map(lambda delays: look(*delays)),
    ),
)


@given(looks=LOOKS)
def test_each_waiting_message_is_in_one_line_and_in_one_bucket_or_in_none(looks: Looks) -> None:
    report = delay_report(looks)
    figures = {name: each.delays for name, each in looks.items() if isinstance(each, Overview)}
    assert report.failed.keys() | figures.keys() == looks.keys()
    assert not report.failed.keys() & figures.keys()
    everything = [(name, each) for name, delays in figures.items() for each in delays]
    assert report.waiting == (sum(each.waiting for _, each in everything) if figures else None)
    assert sum(line.waiting for line in report.lines) == sum(report.due) + report.untimed == (report.waiting or 0)
    assert [line.delay_ms for line in report.lines] == sorted({each.delay_ms for _, each in everything})
    for line in report.lines:
        own = [(name, each) for name, each in everything if each.delay_ms == line.delay_ms]
        assert set(line.brokers) == {name for name, _ in own}
        assert line.waiting == sum(each.waiting for _, each in own)
        firsts = [each.first_due_ms for _, each in own]
        assert line.first_due_ms == (None if None in firsts else min(each for each in firsts if each is not None))
    assert json.loads(json.dumps(delays_json(report)))["due"][0]["messages"] == report.due[0]


def test_brokers_that_do_not_report_are_named_and_count_as_nothing() -> None:
    looks: Looks = {"new": look(DelayFigures(1_000, 2, 5, (0, 2, 0, 0, 0, 0))), "gone": "no connection"}
    assert delay_report(looks) == DelayReport(
        lines=(DelayLine(1_000, ("new",), 2, 5),),
        waiting=2,
        due=(0, 2, 0, 0, 0, 0),
        untimed=0,
        failed={"gone": "no connection"},
    )
    assert delay_report({"gone": "no connection"}).waiting is None
    assert delay_report({"new": look()}).waiting == 0
    assert delay_report({}).waiting is None


@pytest.mark.parametrize(("first_due_ms", "is_late"), [(None, False), (1, False), (0, False), (-LATE_MS, False), (-LATE_MS - 1, True)])
def test_delay_is_late_if_its_first_message_is_long_overdue(first_due_ms: int | None, is_late: bool) -> None:
    assert DelayLine(1_000, ("a",), 1, first_due_ms).is_late == is_late


def test_buckets_have_names_and_bounds_that_join() -> None:
    assert [due_name(bucket) for bucket in range(BUCKETS)] == ["overdue", "within 1m", "1m to 5m", "5m to 30m", "30m to 2h", "after 2h"]
    due = delays_json(delay_report({}))["due"]
    assert [(each["after_ms"], each["within_ms"]) for each in due] == [
        (None, 0), (0, 60_000), (60_000, 300_000), (300_000, 1_800_000), (1_800_000, 7_200_000), (7_200_000, None)
    ]  # fmt: skip
    assert list(DUE_WITHIN_MS) == sorted(set(DUE_WITHIN_MS))


def bars(root: Element) -> list[tuple[str, float]]:
    """Return class and length of each bar, from the top."""
    return [(each.get("class", ""), float(each.get("width", 0))) for each in root.iter(f"{SVG}rect")]


@given(counts=st.lists(st.integers(0, 10**9), min_size=1, max_size=9))
def test_bars_are_as_long_as_their_numbers_and_a_few_messages_are_seen(counts: list[int]) -> None:
    root = parse(due_picture([(f"p{number}", count) for number, count in enumerate(counts)], "When"))
    drawn = bars(root)
    assert len(drawn) == sum(count > 0 for count in counts)
    highest = max(counts)
    for (kind, length), (number, count) in zip(drawn, [(n, c) for n, c in enumerate(counts) if c], strict=True):
        assert kind == ("c7" if number == 0 else "c0")
        assert length == pytest.approx(max(2, count * LENGTH / highest), abs=0.06)
        assert LABEL + length <= WIDTH
    assert root.findtext(f"{SVG}desc") == ", ".join(f"p{number} {count:,}" for number, count in enumerate(counts))
    assert (root.get("role"), root.get("aria-label"), root.findtext(f"{SVG}title")) == ("img", "When", "When")


def test_names_stay_text_in_the_picture() -> None:
    root = parse(due_picture([(HOSTILE, 1), (HOSTILE, 0)], HOSTILE))
    assert not list(root.iter(f"{SVG}script"))
    assert "\u202e" not in "".join(root.itertext())
    assert bars(parse(due_picture([("a", 0)], "Nothing"))) == []


async def test_command_prints_what_waits(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("orders", queues=1)
    await _delays(cluster.nameserver, as_json=False)
    assert capsys.readouterr().out == "no message waits\n"
    await send_delayed(cluster, "orders", {4: 2, 14: 1, 18: 3})
    await cluster.advance(seconds=10)
    await _delays(cluster.nameserver, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["delay", "30s", "10m", "2h", "due:"]
    assert lines[-1] == "due: overdue 0, within 1m 2, 1m to 5m 0, 5m to 30m 1, 30m to 2h 3, after 2h 0"
    await cluster.kill("broker-b")
    await cluster.kill("broker-a")
    with pytest.raises(OperationError, match=r"broker broker-a.*broker broker-b"):
        await _delays(cluster.nameserver, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["waiting"], found["delays"], list(found["failed"])) == (None, [], ["broker-a", "broker-b"])


@pytest.mark.lockstep(brokers=1)
async def test_message_of_a_producer_with_a_delay_level_waits_for_any_delay(
    lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await lockstep_cluster.create_topic("orders", queues=1)
    await send_delayed(lockstep_cluster, "orders", {18: 1})
    async with Producer("reminders", nameserver=lockstep_cluster.nameserver) as producer:
        await producer.send(Message("orders", b"x"), delay_level=18)
    await _delays(lockstep_cluster.nameserver, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:-1]] == [["any", "broker-a", "1"], ["2h", "broker-a", "1"]]
