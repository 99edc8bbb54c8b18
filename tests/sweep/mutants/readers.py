"""Rules of pull consumers (docs/guide.md), and of compressed bodies."""

from dataclasses import replace
from typing import Any

from lockstep.broker.delivery import message_copy
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.processors import pull
from lockstep.broker.processors.pull_request import EVERY_MESSAGE, filter_of
from lockstep.client.consumer.calls.poll_model import PollModel
from lockstep.client.consumer.calls.process_queue import ProcessQueue
from lockstep.client.consumer.calls.queue_worker import QueueWorker
from lockstep.client.consumer.grants import broker_session
from lockstep.client.consumer.grants.progress_query import query_header, read_query
from lockstep.client.consumer.pull_consumer import PullConsumer
from lockstep.protocol.bodies import SQL92, TAG, ConsumeFromWhere
from lockstep.protocol.errors import StateError
from lockstep.protocol.messages import message
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.tags import MATCH_ALL, TagFilter
from sweep.mutants.registry import Patches, mutant
from sweep.settings import READERS

WORLD = "readers"


@mutant(WORLD)
def fetched_messages_count_as_handled(patch: Patches) -> None:
    """A commit covers polled messages, not fetched ones."""
    settle = PollModel.mark_done

    def everything(self: PollModel) -> Any:
        for runner in self._held.values():
            ownership, messages = runner.worker.ownership, runner.grant.messages
            if messages.commit_offset >= ownership.offset and messages.waiting:
                self._moved.pop(runner, None)
                ownership.call_ended(runner.grant.token, messages.next_offset, 0)
                runner.worker.session.changed(ownership)
        return settle(self)

    patch.set(PollModel, "mark_done", everything)


@mutant(WORLD)
def polled_messages_count_as_handled_at_once(patch: Patches) -> None:
    """With auto-commit the messages of a poll are done with the next poll, not at once."""
    take = PollModel.take

    def at_once(self: PollModel, count: int) -> list[MessageExt]:
        batch = take(self, count)
        self.mark_done()
        return batch

    patch.set(PollModel, "take", at_once)


@mutant(WORLD)
def a_seek_keeps_fetched_messages(patch: Patches) -> None:
    """A seek drops the fetched messages of its queue."""

    def keeping(self: ProcessQueue, offset: int) -> None:
        if not self.waiting:
            self.commit_offset = offset
        self.next_offset = offset

    patch.set(ProcessQueue, "seek", keeping)


@mutant(WORLD)
def a_revoked_queue_still_returns_messages(patch: Patches) -> None:
    """A revoked queue returns no more messages: its fetched ones are dropped."""

    def whatever(self: PollModel, count: int) -> list[MessageExt]:
        for runner in [runner for runner in self._ready if runner.worker.queue not in self.paused]:
            del self._ready[runner]
            batch = runner.grant.messages.take(count)
            runner.grant.messages.commit()
            if runner.grant.messages.waiting:
                self._ready[runner] = None
            runner.grant.pull_wake.set()
            if batch:
                self._moved.setdefault(runner)
                runner.worker.ownership.running = True
                return batch
        return []

    patch.set(PollModel, "take", whatever)


@mutant(WORLD)
def every_queue_begins_at_its_first_message(patch: Patches) -> None:
    """A member that gets a queue, by hand too, reads the group's progress and continues there."""

    def from_the_start(ownership: Any, response: Any) -> Any:
        progress = read_query(ownership, response)
        return progress if progress is None else replace(progress, offset=0)

    patch.set(broker_session, "read_query", from_the_start)


@mutant(WORLD)
def a_late_commit_does_not_raise(patch: Patches) -> None:
    """commit() raises if the messages at hand do not count any more."""

    def silent(self: PullConsumer) -> None:
        self._polls.revoked.clear()

    patch.set(PullConsumer, "_raise_stale", silent)


@mutant(WORLD)
def a_commit_is_not_awaited(patch: Patches) -> None:
    """commit() returns when the brokers have accepted the messages at hand."""

    async def at_once(self: PullConsumer, waiting: Any) -> None:
        return None

    patch.set(PullConsumer, "_committed", at_once)


@mutant(WORLD)
def a_commit_never_goes_back(patch: Patches) -> None:
    """A commit after a seek moves the group too, also back."""
    settle = PollModel.mark_done

    def forward(self: PollModel) -> Any:
        settle(self)
        self._moved.clear()
        return []

    patch.set(PollModel, "mark_done", forward)


@mutant(WORLD)
def pauses_are_forgotten(patch: Patches) -> None:
    """Polls pass over a queue that is paused."""
    patch.set(PollModel, "pause", lambda self, queue: None)


@mutant(WORLD)
def an_iteration_yields_only_the_first_polled_message(patch: Patches) -> None:
    """`async for` yields every message, one after the other."""
    poll = PullConsumer._poll

    async def many(self: PullConsumer, count: int, timeout_ms: int | None) -> list[MessageExt]:
        return await poll(self, self.config.poll_count if timeout_ms is None else count, timeout_ms)

    patch.set(PullConsumer, "_poll", many)


@mutant(WORLD)
def an_iteration_ends_without_pending_messages(patch: Patches) -> None:
    """`async for` continues until its consumer is stopped."""

    async def impatient(self: PullConsumer) -> MessageExt:
        if batch := await self._poll(1, 100):
            return batch[0]
        raise StopAsyncIteration

    patch.set(PullConsumer, "__anext__", impatient)


@mutant(WORLD)
def a_stop_raises_in_an_iteration(patch: Patches) -> None:
    """`async for` ends without an error when its consumer is stopped."""
    next_ = PullConsumer.__anext__

    async def raising(self: PullConsumer) -> MessageExt:
        try:
            return await next_(self)
        except StopAsyncIteration:
            raise StateError("it is stopped") from None

    patch.set(PullConsumer, "__anext__", raising)


@mutant(WORLD)
def tags_are_not_compared(patch: Patches) -> None:
    """A group is given messages with one of its tags."""
    found = filter_of  # which caches parsed expressions
    patch.set(pull, "filter_of", lambda kind, expression: EVERY_MESSAGE if kind == TAG else found(kind, expression))
    patch.set(TagFilter, "parse", classmethod(lambda cls, expression: MATCH_ALL))


@mutant(WORLD)
def conditions_are_not_evaluated(patch: Patches) -> None:
    """A group is given messages whose properties meet its SQL92 condition."""
    found = filter_of
    patch.set(pull, "filter_of", lambda kind, expression: EVERY_MESSAGE if kind == SQL92 else found(kind, expression))


@mutant(WORLD)
def the_first_tag_counts(patch: Patches) -> None:
    """Every tag of an expression is wanted."""
    patch.set(TagFilter, "matches_tag", lambda self, tag: self.all or tag == min(self.tags))


@mutant(WORLD)
def filtered_messages_hold_progress_back(patch: Patches) -> None:
    """A pull consumer's progress passes over messages that its tags filter."""
    patch.set(PollModel, "position_moved", lambda self, runner: None)


@mutant("retention")
def gaps_are_reported_to_listeners_only(patch: Patches) -> None:
    """A pull consumer is notified of messages that retention removed before its group had them."""
    gap = QueueWorker.report_gap

    def silent(self: QueueWorker, first: int | None, end: int | None) -> None:
        if self.ctx.listener_name != "poll":
            gap(self, first, end)

    patch.set(QueueWorker, "report_gap", silent)


@mutant("retention")
def a_gap_begins_late(patch: Patches) -> None:
    """A gap begins at its group's progress: a pull consumer below it passes over messages that others had handled, and no more."""
    moved = Coordination.skip_removed

    def late(self: Coordination, minimums: Any) -> Any:
        yield from moved(self, minimums)
        table = self.state.progress
        for key, progress in list(table):
            if key[0] == READERS and progress.gap is not None and progress.gap[1] == progress.offset:
                table.set_progress(key, replace(progress, gap=(progress.offset - 1, progress.offset)))

    patch.set(Coordination, "skip_removed", late)


@mutant("begin")
def pull_consumers_begin_at_the_first_message(patch: Patches) -> None:
    """A pull consumer requests its first offset by its own start policy."""

    def first(party: Any) -> Any:
        return replace(query_header(party), where=ConsumeFromWhere.FIRST_OFFSET)

    patch.set(broker_session, "query_header", first)


@mutant(WORLD)
def bodies_are_given_as_they_are_stored(patch: Patches) -> None:
    """A body that was stored compressed is delivered as it was sent."""
    patch.set(message, "decompress_body", lambda stored, sys_flag: stored)


@mutant("concurrent")
def copies_lose_their_flags(patch: Patches) -> None:
    """The copy of a compressed message is compressed, and flagged so."""

    def plain(*place: Any, sys_flag: int, **facts: Any) -> bytes:
        return encode_record(*place, **facts)

    patch.set(message_copy, "encode_record", plain)


@mutant(
    WORLD,
    aimed="tests/unit/client/test_pull_consumer_seek.py::test_seek_and_pause_are_forgotten_when_the_queue_moves_to_another_member",
)
def seeks_and_pauses_survive_a_revocation(patch: Patches) -> None:
    """A pause, and a seek before its broker has responded, count while the queue is assigned."""
    patch.set(PollModel, "unassigned", lambda self, queue: None)
