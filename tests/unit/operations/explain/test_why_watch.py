"""lockstep why --watch: what it prints while it examines again and again, and how it ends."""

import asyncio
import json
from dataclasses import replace

import pytest
import typer
from rich.console import ConsoleDimensions

from lockstep.cli.commands.why import Examination, _why
from lockstep.operations.errors import OperationError
from lockstep.operations.explain.why import Cause, Explanation, Facts, QueueState, explain
from lockstep.operations.explain.why_query import Diagnosis
from lockstep.operations.explain.why_text import answer_of, diagnosis_lines
from lockstep.operations.groups.group_report import report
from lockstep.protocol.bodies import RunningInfo
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.testing import TestCluster
from support.why_kit import GROUP, TOPIC, Member, hang, send
from unit.operations.explain.test_why import AT_A, BROKER, HELD, INFO, QUEUE, RUNS, with_queue

one_broker = pytest.mark.lockstep(brokers=1)


class Watching:
    """The command, as it runs."""

    def __init__(self, cluster: TestCluster, capsys: pytest.CaptureFixture[str], *, as_json: bool = False) -> None:
        self._cluster = cluster
        self._capsys = capsys
        self._task = asyncio.create_task(_why(GROUP, None, None, None, cluster.nameserver, as_json, 2))

    async def printed(self, seconds: float) -> str:
        """Return what it prints within this time."""
        await self._cluster.advance(seconds=seconds)
        return self._capsys.readouterr().out

    async def blocks(self, seconds: float) -> list[list[str]]:
        """Return the lines of each block without its time."""
        blocks = (await self.printed(seconds)).split("\n\n")[:-1]
        return [block.splitlines()[1:] for block in blocks]

    async def exit_code(self) -> int:
        """Interrupt it."""
        self._task.cancel()
        with pytest.raises(typer.Exit) as ended:
            await self._task
        return ended.value.exit_code


async def member(cluster: TestCluster, **settings: object) -> Member:
    await cluster.create_topic(TOPIC, queues=1)
    made = Member(cluster, hang, dict(settings))
    await cluster.start("a", made.run)
    await cluster.settled(GROUP)
    return made


@one_broker
async def test_block_is_printed_when_the_answer_has_changed(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = lockstep_cluster
    hung = await member(cluster)
    watching = Watching(cluster, capsys)
    ((idle,),) = await watching.blocks(10)
    assert idle.startswith(f"{TOPIC}@broker-a:0 of group {GROUP} has nothing to do")
    await send(cluster, 10)
    (stands,) = await watching.blocks(10)
    assert stands[0].startswith(f"{TOPIC}@broker-a:0 of group {GROUP} is stalled at offset 0: 10 messages wait")
    assert stands[1].startswith("  because  the listener support.why_kit.hang has been running for ")
    await send(cluster, 10)
    assert await watching.blocks(60) == [], "only the age of the call and the number of messages change"
    hung.started.pause()
    (paused,) = await watching.blocks(10)
    assert " is paused by its application" in paused[1]
    assert await watching.exit_code() == 0


@one_broker
async def test_nameserver_and_broker_that_are_away_are_told_and_come_back(
    lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = lockstep_cluster
    await member(cluster)
    watching = Watching(cluster, capsys)
    assert len(await watching.blocks(10)) == 1
    await cluster.kill("broker-a")
    blocks = await watching.blocks(30)
    assert blocks[0][0].startswith("not known: the result is incomplete: broker broker-a: ")
    await cluster.kill("nameserver-1")
    blocks = await watching.blocks(30)
    assert blocks[-1][0].startswith("not known: ")
    assert await watching.blocks(30) == [], "it is told once"
    await cluster.restart("nameserver-1")
    await cluster.restart("broker-a")
    *_, last = await watching.blocks(30)
    assert last[0].startswith(f"{TOPIC}@broker-a:0 of group {GROUP} has nothing to do")
    assert await watching.exit_code() == 0


async def test_last_examination_makes_the_exit_code(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = lockstep_cluster
    await member(cluster)
    watching = Watching(cluster, capsys)
    assert len(await watching.blocks(10)) == 1
    await cluster.kill("broker-b")
    blocks = await watching.blocks(30)
    assert blocks[-1][-1].startswith("the result is incomplete: broker broker-b: ")
    assert await watching.exit_code() == 1


@one_broker
async def test_each_examination_is_a_line_of_json(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = lockstep_cluster
    await member(cluster)
    await send(cluster, 10)
    watching = Watching(cluster, capsys, as_json=True)
    shown = [json.loads(line) for line in (await watching.printed(10)).splitlines()]
    assert len(shown) in (3, 4), "one every 3 s: two looks a second apart, and 2 s between examinations"
    assert {each["group"] for each in shown} == {GROUP}
    assert [each["error"] for each in shown] == [None] * len(shown)
    assert len({each["time"] for each in shown}) == len(shown)
    assert [each["queues"][0]["because"]["name"] for each in shown[1:]] == ["listener_runs"] * (len(shown) - 1)
    await cluster.kill("broker-a")
    last = json.loads((await watching.printed(30)).splitlines()[-1])
    assert (last["group"], "broker broker-a" in last["error"]) == (GROUP, True)
    assert await watching.exit_code() == 1


@one_broker
async def test_first_examination_that_fails_ends_the_command(lockstep_cluster: TestCluster) -> None:
    with pytest.raises(OperationError, match=f"no broker knows group {GROUP}"):
        await _why(GROUP, None, None, None, lockstep_cluster.nameserver, False, 2)


def diagnosis(info: RunningInfo = RUNS, *, note: str | None = None, **queue_changes: int) -> Diagnosis:
    queue = replace(HELD, **queue_changes)  # type: ignore[arg-type]
    made = report(GROUP, {BROKER: with_queue(queue)}, [QUEUE])
    explanation = explain(made, Facts(made.queues[0], info=info))
    return Diagnosis((explanation,), {QUEUE: explanation.state}, note=note)


def test_ages_and_numbers_of_waiting_messages_are_no_part_of_an_answer() -> None:
    oldest = RUNS.oldest
    assert oldest is not None
    older = replace(RUNS, oldest=replace(oldest, ran_ms=7_500_000))
    first, later = diagnosis(), diagnosis(older, max_offset=99, committed_ago_ms=400_000)
    assert list(diagnosis_lines(GROUP, first)) != list(diagnosis_lines(GROUP, later))
    assert answer_of(first) == answer_of(later)
    assert [each.state for each in later.explanations] == [QueueState.STALLED]


@pytest.mark.parametrize(
    "other",
    [
        diagnosis(replace(RUNS, paused=True)),
        diagnosis(INFO),
        diagnosis(replace(INFO, queue=replace(AT_A, again_ms=5_000))),
        diagnosis(committed_offset=6),
        diagnosis(committed_offset=25),
        diagnosis(note="a note"),
        replace(diagnosis(), failed={"broker-b": "it does not respond"}),
    ],
)
def test_other_cause_offset_or_state_is_another_answer(other: Diagnosis) -> None:
    assert answer_of(other) != answer_of(diagnosis())


def test_cause_of_the_group_is_told_once_and_a_parked_key_with_each_of_its_queues() -> None:
    """Also of queues that are not shown, or share the cause of another one."""
    refused = Cause("member_refused", "c was not admitted", "give all members the same settings")
    parked = Cause("parked", "parked keys: k1")
    because = Cause("paused", "a is paused")
    stands = Explanation(TOPIC, BROKER, 0, QueueState.STALLED, 5, "it stands", because, (refused,))
    alike = replace(stands, queue_id=1, also=(refused, parked, Cause("span_full", "its own affair")))
    moves = replace(stands, queue_id=2, state=QueueState.PROGRESSING, because=None, also=(refused, parked))
    states = {MessageQueue(TOPIC, BROKER, each.queue_id): each.state for each in (stands, alike, moves)}
    found = Diagnosis((stands, alike, moves), states)
    assert list(diagnosis_lines(GROUP, found))[1:] == [
        "it stands",
        f"  and so   {TOPIC}@{BROKER}:1",
        "  because  a is paused",
        "  also     c was not admitted",
        "  next     give all members the same settings",
        f"  also     parked keys: k1 ({TOPIC}@{BROKER}:1, {TOPIC}@{BROKER}:2)",
    ]
    assert answer_of(found) != answer_of(replace(found, explanations=(stands, alike, replace(moves, also=()))))


def test_screen_has_the_answer_as_far_as_there_is_room() -> None:
    found = diagnosis(note="hostile \x1b[2J text")
    examined = Examination(GROUP, 0, found)
    lines = examined.screen(2, ConsoleDimensions(400, 30)).plain.splitlines()
    assert lines[0] == "1970-01-01T00:00:00.000Z  every 2 s; Ctrl-C ends it"
    assert lines[2:] == list(diagnosis_lines(GROUP, found))[1:]
    assert not any("\x1b" in line for line in lines)
    narrow = examined.screen(2, ConsoleDimensions(40, 5)).plain.splitlines()
    assert len(narrow) == 5
    assert all(len(line) <= 40 for line in narrow)
    assert narrow[-1].endswith(" more lines")
    whole = examined.screen(2, ConsoleDimensions(40, 99)).plain.splitlines()
    assert narrow[-1] == f"… {len(whole) - 4} more lines"


def test_screen_tells_why_the_answer_is_old_or_incomplete() -> None:
    old = Examination(GROUP, 0, diagnosis(), "no nameserver responds")
    assert "this answer is old: no nameserver responds" in old.screen(2, ConsoleDimensions(200, 9)).plain.splitlines()[0]
    assert old.exit_code == 1
    incomplete = Examination(GROUP, 0, replace(diagnosis(), failed={"broker-b": "it is away"}))
    assert "the result is incomplete: broker broker-b: it is away" in incomplete.screen(2, ConsoleDimensions(200, 9)).plain.splitlines()[0]
    assert incomplete.exit_code == 1
    unexplained = Examination(GROUP, 0, diagnosis(INFO))
    assert (unexplained.exit_code, Examination(GROUP, 0, diagnosis()).exit_code) == (1, 0)
