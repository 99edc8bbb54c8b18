"""Rules of concurrent groups, send-backs, dead letters and delayed messages (docs/wire.md, concurrent groups)."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lockstep.broker.delivery.delayed_delivery import DelayedDelivery
from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.delivery.home_delivery import HomeDelivery
from lockstep.broker.delivery.message_copy import failed_copy
from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.lock_sync import LockSync
from lockstep.broker.processors import send_back
from lockstep.broker.processors.send_back import SendBackProcessor
from lockstep.broker.store.log.stored_record import Ended
from lockstep.broker.tables.delay_table import DelayTable
from lockstep.client.consumer.calls.concurrent_model import ConcurrentCall, ConcurrentRunner
from lockstep.client.consumer.calls.process_queue import ProcessQueue
from lockstep.client.consumer.calls.retry import OrderedRetry
from lockstep.client.consumer.calls.runner import Call
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.names import SCHEDULE_TOPIC
from sweep.mutants.registry import Patches, mutant

WORLD = "concurrent"


@mutant(WORLD)
def progress_passes_unfinished_messages(patch: Patches) -> None:
    """Progress moves to the smallest unfinished message."""
    finish = ProcessQueue.finish

    def ahead(self: ProcessQueue, messages: Iterable[MessageExt]) -> bool:
        done = list(messages)
        taken = self._messages[self._first : self._next]
        return finish(self, [each for each in taken if each.queue_offset <= max(one.queue_offset for one in done)] if done else done)

    patch.set(ProcessQueue, "finish", ahead)


@mutant(WORLD)
def a_send_back_that_failed_counts(patch: Patches) -> None:
    """A message that could not be sent back remains with the consumer and is called again."""
    back = ConcurrentRunner._send_back

    async def taken(self: ConcurrentRunner, message: MessageExt, level: int, why: str, error: BaseException | None) -> bool:
        await back(self, message, level, why, error)
        return True

    patch.set(ConcurrentRunner, "_send_back", taken)


@mutant(WORLD)
def send_backs_are_not_awaited(patch: Patches) -> None:
    """Progress moves past a message that was sent back only after the broker's response."""
    everything = ConcurrentRunner._send_all_back

    async def early(self: ConcurrentRunner, call: ConcurrentCall, failed: Any, *how: Any) -> bool:
        self.finish(list(failed))
        return await everything(self, call, failed, *how)

    patch.set(ConcurrentRunner, "_send_all_back", early)


@mutant(
    WORLD,
    aimed="tests/unit/client/test_concurrent_consumer.py::test_failed_send_back_repeats_the_call_however_long_the_call_took",
)
def ended_calls_run_too_long(patch: Patches) -> None:
    """A call that has ended is not sent back for running too long."""
    patch.set(Call, "ended", property(lambda self: False, lambda self, value: None))


@mutant(WORLD)
def a_partly_handled_batch_counts_as_complete(patch: Patches) -> None:
    """Messages after `ack_index` were not handled."""
    process = ConcurrentRunner.process

    async def whole(self: ConcurrentRunner, call: ConcurrentCall, result: object, error: BaseException | None) -> None:
        call.context.ack_index = len(call.batch) - 1
        await process(self, call, result, error)

    patch.set(ConcurrentRunner, "process", whole)


@mutant(WORLD)
def tries_are_not_counted(patch: Patches) -> None:
    """A copy has one try more than the message that was sent back."""

    def same(record: Any, *facts: Any) -> Any:
        return replace(failed_copy(record, *facts), reconsume_times=record.reconsume_times)

    patch.set(send_back, "failed_copy", same)


@mutant(WORLD)
def tries_have_no_end(patch: Patches) -> None:
    """A message without a try left goes to the dead-letter topic."""
    back = vars(SendBackProcessor)["send_back"]

    async def again(self: SendBackProcessor, request: Any) -> Any:
        request.header = replace(request.header, max_reconsume_times=1_000)
        return await back(self, request)

    again.__dict__.update(back.__dict__)
    patch.set(SendBackProcessor, "send_back", again)


@mutant(WORLD)
def delays_are_ignored(patch: Patches) -> None:
    """A delayed message, and a retry, is delivered when it is due."""
    init = DelayedDelivery.__init__

    def at_once(self: DelayedDelivery, store: Any, table: Any, topics: Any, home: Any, levels_ms: Any) -> None:
        init(self, store, table, topics, home, [1 for _ in levels_ms])

    patch.set(DelayedDelivery, "__init__", at_once)


@mutant(
    WORLD,
    aimed="tests/unit/broker/test_delayed_delivery.py::test_write_of_which_the_disk_has_a_part_delivers_nothing_twice",
)
def a_torn_delivery_repeats(patch: Patches) -> None:
    """A start takes the progress of a delay queue from the copies too: the record of it may be missing."""
    patch.set(DelayTable, "ended", lambda self, queue_id, offset: None)


@mutant(
    WORLD,
    aimed="tests/unit/broker/test_delayed_delivery.py::test_progress_is_written_with_the_deliveries_and_a_restart_continues_after_it",
)
def delivered_without_a_record(patch: Patches) -> None:
    """The progress of a delay queue is recorded with the delivered messages."""
    patch.set(
        DelayTable, "record_delivered", lambda self, queue_id, next_offset: self.apply(("delay.delivered", queue_id + 1, next_offset))
    )


@mutant(WORLD)
def undeliverable_delayed_messages_are_skipped(patch: Patches) -> None:
    """A delay queue that can't deliver its first message now keeps it and waits."""
    deliver = HomeDelivery.deliver

    def some(self: HomeDelivery, record: RecordView, ended: Ended) -> bool | None:
        # As if the store refused one message in eight.
        return (ended.topic == SCHEDULE_TOPIC and record.physical_offset % 8 == 0) or deliver(self, record, ended)

    patch.set(HomeDelivery, "deliver", some)


@mutant(WORLD)
def a_dead_letter_does_not_move_progress(patch: Patches) -> None:
    """A dead letter and the progress past it are one write."""
    patch.set(LockSync, "commit_dead_letter", lambda self, *facts: None)


@mutant(WORLD)
def a_repeated_dead_letter_is_written_again(patch: Patches) -> None:
    """A DEAD_LETTER for a message that progress has passed is a repeat: it writes nothing."""
    done = LockSync.is_dead_lettered

    def never(self: LockSync, *facts: Any) -> bool | None:
        return None if done(self, *facts) is None else False

    patch.set(LockSync, "is_dead_lettered", never)


@mutant(WORLD)
def dead_letters_are_written_early(patch: Patches) -> None:
    """A batch is dead-lettered after as many failed calls as its group allows."""
    patch.set(OrderedRetry, "gives_up", lambda self, attempts: self.on_exhausted == "dlq" and attempts >= 1)


@mutant(WORLD)
def generations_are_not_checked(patch: Patches) -> None:
    """A commit under a generation that is over is STALE."""
    sync = LockSync._sync_generation

    def any_generation(self: LockSync, key: Any, item: Any, now_ms: int) -> Any:
        progress = self._state.progress.get(key)
        if progress is not None and item.generation is not None:
            item = replace(item, generation=progress.generation)
        return sync(self, key, item, now_ms)

    patch.set(LockSync, "_sync_generation", any_generation)


@mutant(WORLD)
def members_begin_at_the_end_of_a_queue(patch: Patches) -> None:
    """A member begins at its group's progress."""
    granted = LockSync._grant_result

    def ahead(self: LockSync, session: Any, key: Any, epoch: int) -> Any:
        response = granted(self, session, key, epoch)
        state: GroupState = self._state
        return response if state.locks.holder(key) is not None else replace(response, offset=state.bounds.end_offset(key[1], key[2]))

    patch.set(LockSync, "_grant_result", ahead)


@mutant(
    WORLD,
    aimed="tests/unit/broker/test_app_copies.py::test_send_back_that_names_another_message_than_the_stored_one_is_rejected",
)
def a_send_back_copies_any_message_at_the_offset(patch: Patches) -> None:
    """A send back copies the message that its consumer received, or none."""
    patch.set(send_back, "_check_same", lambda record, header: None)


@mutant("delete", aimed="tests/unit/broker/test_delayed_delivery.py::test_recreated_topic_gets_no_delayed_message_of_its_predecessor")
def delayed_messages_outlive_their_topic(patch: Patches) -> None:
    """Delayed messages of a deleted topic are not delivered to the one created again."""
    patch.set(GroupTopics, "deleted_since", lambda self, topic, counter: False)
