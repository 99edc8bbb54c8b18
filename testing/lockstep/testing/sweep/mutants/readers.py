"""Rules of pull consumers (docs/guide.md), and of compressed bodies."""

from dataclasses import replace
from typing import Any

from lockstep.broker import letter
from lockstep.client.consumer import session
from lockstep.client.consumer.process_queue import ProcessQueue
from lockstep.client.consumer.pull_consumer import PullConsumer
from lockstep.client.consumer.query import read_query
from lockstep.client.consumer.shelf import Shelf
from lockstep.protocol import message
from lockstep.protocol.message import MessageExt
from lockstep.protocol.record import encode_record
from lockstep.testing.sweep.mutants.registry import Patches, mutant

WORLD = "readers"


@mutant(WORLD)
def what_is_on_the_shelf_counts(patch: Patches) -> None:
    """A commit covers what polls have given, not what is fetched."""
    settle = Shelf.settle

    def everything(self: Shelf) -> Any:
        for queue, (worker, holding) in self._held.items():
            if holding.messages.commit_offset >= worker.own.offset and holding.messages.waiting:
                self._moved.pop(queue, None)
                worker.own.call_ended(holding.epoch, holding.messages.next_offset, 0)
                worker.session.changed(worker.own)
        return settle(self)

    patch.set(Shelf, "settle", everything)


@mutant(WORLD)
def what_a_poll_gives_is_done(patch: Patches) -> None:
    """With auto-commit what a poll gave is done with the next one, not at once."""
    take = Shelf.take

    def at_once(self: Shelf, count: int) -> list[MessageExt]:
        batch = take(self, count)
        self.settle()
        return batch

    patch.set(Shelf, "take", at_once)


@mutant(WORLD)
def a_seek_leaves_what_was_fetched(patch: Patches) -> None:
    """A seek drops what is fetched of its queue."""

    def keeping(self: ProcessQueue, offset: int) -> None:
        if not self.waiting:
            self.commit_offset = offset
        self.next_offset = offset

    patch.set(ProcessQueue, "seek", keeping)


@mutant(WORLD)
def a_queue_that_goes_is_given_on(patch: Patches) -> None:
    """A queue that was taken away gives no more messages: what is on its shelf goes with it."""

    def whatever(self: Shelf, count: int) -> list[MessageExt]:
        for queue in [queue for queue in self._ready if queue not in self.paused]:
            del self._ready[queue]
            worker, holding = self._held[queue]
            batch = holding.messages.take(count)
            holding.messages.commit()
            if holding.messages.waiting:
                self._ready[queue] = None
            holding.pull_wake.set()
            if batch:
                self._moved.setdefault(queue)
                worker.own.running = True
                return batch
        return []

    patch.set(Shelf, "take", whatever)


@mutant(WORLD)
def every_queue_begins_at_its_first_message(patch: Patches) -> None:
    """A member that gets a queue, by hand too, reads the group's progress and goes on there."""

    def from_the_start(own: Any, response: Any) -> Any:
        answer = read_query(own, response)
        return answer if answer is None else replace(answer, offset=0)

    patch.set(session, "read_query", from_the_start)


@mutant(WORLD)
def a_late_commit_is_not_told(patch: Patches) -> None:
    """commit() raises where what was at hand does not count any more."""

    def silent(self: PullConsumer) -> None:
        self._shelf.void.clear()

    patch.set(PullConsumer, "_tell_void", silent)


@mutant(WORLD)
def a_commit_is_not_awaited(patch: Patches) -> None:
    """commit() returns when the brokers have what was at hand."""

    async def at_once(self: PullConsumer, waiting: Any) -> None:
        return None

    patch.set(PullConsumer, "_answered", at_once)


@mutant(WORLD)
def a_commit_never_goes_back(patch: Patches) -> None:
    """A commit behind a seek takes the group along, also back."""
    settle = Shelf.settle

    def forward(self: Shelf) -> Any:
        settle(self)
        self._moved.clear()
        return []

    patch.set(Shelf, "settle", forward)


@mutant(WORLD)
def pauses_are_forgotten(patch: Patches) -> None:
    """Polls pass over a queue that is paused."""
    patch.set(Shelf, "pause", lambda self, queue: None)


@mutant(WORLD)
def bodies_are_given_as_they_are_stored(patch: Patches) -> None:
    """A body that was stored compressed is given as it was sent."""
    patch.set(message, "decompress_body", lambda stored, sys_flag: stored)


@mutant("concurrent")
def copies_lose_their_flags(patch: Patches) -> None:
    """The copy of a message is compressed where the message is, and says so."""

    def plain(*place: Any, sys_flag: int, **facts: Any) -> bytes:
        return encode_record(*place, **facts)

    patch.set(letter, "encode_record", plain)


@mutant(
    WORLD,
    aimed="tests/unit/client/test_pull_consumer_seek.py::test_what_was_asked_of_a_queue_goes_with_it_to_another_member_and_does_not_come_back",
)
def what_was_asked_of_a_queue_comes_back(patch: Patches) -> None:
    """A pause, and a seek before its broker has told, count while the queue is assigned."""
    patch.set(Shelf, "forget", lambda self, queue: None)
