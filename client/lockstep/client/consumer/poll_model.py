"""Keeps what a pull consumer has fetched and not handed out, queue by queue, and how far what it handed out counts as done.

    committed                 position                next offset to fetch
        │  handed out, not done  │  fetched                │
    ────┴────────────────────────┴─────────────────────────┴────▶ queue offset

A poll hands out messages of one queue, one queue after the other. What was handed out is done when the user says so (`settle`): with the
next poll, or by commit(). Until then a queue that is given to another member drains: a commit still counts. When a grant ends, what was
fetched under it is dropped.
"""

import asyncio
from collections import OrderedDict

from lockstep.client.consumer.consume_model import HeldQueue
from lockstep.client.consumer.grant import Grant
from lockstep.client.consumer.ownership import OwnershipState
from lockstep.protocol.message import MessageExt
from lockstep.protocol.queue import MessageQueue


class PollModel:
    """The consume model of a pull consumer. `changed` is set with whatever a poll or a commit may wait for."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.paused: dict[MessageQueue, None] = {}
        self.seeks: dict[MessageQueue, int] = {}
        """Where a queue is to go on as soon as it is held."""
        self.void: dict[MessageQueue, int] = {}
        """Queues whose grant ended with messages handed out and not done, and the offset after them: no commit counts for these."""
        self._held: dict[MessageQueue, PollRunner] = {}
        self._ready: OrderedDict[PollRunner, None] = OrderedDict()
        """Queues with messages, the next one first."""
        self._moved: dict[PollRunner, None] = {}
        """Queues whose position is ahead of what is done, or before it after a seek."""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def close(self) -> None:
        """No poll follows: what was handed out and is not done comes again."""
        for runner in self._held.values():
            runner.take_back()
        self.changed.set()

    def runner(self, queue: HeldQueue, grant: Grant) -> "PollRunner":
        return PollRunner(self, queue, grant)

    def tasks(self) -> "list[asyncio.Task[None]]":
        return []

    def unassigned(self, queue: MessageQueue) -> None:
        """Forget a seek and a pause: they were asked of this assignment."""
        self.seeks.pop(queue, None)
        self.paused.pop(queue, None)

    # -------------------------------------------------------------------------------------------------------- from the runners

    def began(self, runner: "PollRunner") -> None:
        self._held[runner.queue.queue] = runner
        offset = self.seeks.pop(runner.queue.queue, None)
        if offset is not None:
            self.seek(runner.queue.queue, offset)

    def look(self, runner: "PollRunner") -> None:
        """Messages may have come, or a commit may have been answered."""
        if runner.grant.messages.waiting:
            self._ready.setdefault(runner)
        self.changed.set()

    def ended(self, runner: "PollRunner") -> None:
        """The grant is over: what was fetched is dropped, and what was handed out and is not done comes again."""
        queue = runner.queue
        if self._held.get(queue.queue) is runner:
            if queue.ownership.running:
                self.void[queue.queue] = runner.grant.messages.commit_offset
            del self._held[queue.queue]
        self._ready.pop(runner, None)
        self._moved.pop(runner, None)
        if queue.ownership.running:
            queue.ownership.call_ended(runner.grant.token, 0, 0)
            queue.session.trigger()
        self.changed.set()

    def moved(self, runner: "PollRunner") -> None:
        if self.held(runner.queue.queue) is runner:
            self._moved.setdefault(runner)

    # ----------------------------------------------------------------------------------------------------- from the consumer

    def held(self, queue: MessageQueue) -> "PollRunner | None":
        """None: the queue is not held now."""
        runner = self._held.get(queue)
        return runner if runner is not None and runner.grant.alive else None

    def position(self, queue: MessageQueue) -> int | None:
        """Offset of the next message that a poll hands out; None: the queue is not held now."""
        runner = self.held(queue)
        return None if runner is None else runner.grant.messages.commit_offset

    def take(self, count: int) -> list[MessageExt]:
        """The next messages of one queue, at most `count`, after which it is the other queues' turn; empty if no queue has any."""
        for _ in range(len(self._ready)):
            runner, _ = self._ready.popitem(last=False)
            if runner.queue.queue in self.paused or not runner.grant.alive or runner.queue.ownership.state is not OwnershipState.HELD:
                continue  # resume() and the next grant put it back
            batch = runner.take(count)
            if runner.grant.messages.waiting:
                self._ready[runner] = None
            if batch:
                self._moved.setdefault(runner)
                return batch
        return []

    def settle(self) -> "list[PollRunner]":
        """Count everything handed out as done. Returns the queues that a seek moved back, whose progress has to be reset instead."""
        back: dict[PollRunner, None] = {}
        for runner in list(self._moved):
            if not runner.grant.alive:
                self.ended(runner)  # in this very turn of the loop: its task has not seen it yet
            elif runner.is_back:
                runner.take_back()
                back[runner] = None
            else:
                runner.settle()
        self._moved = back
        return list(back)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """The next poll of the queue hands out from there. A queue that is not held yet begins there."""
        runner = self.held(queue)
        if runner is None:
            self.seeks[queue] = offset
            return
        self._ready.pop(runner, None)
        self._moved.setdefault(runner)
        runner.seek(offset)

    def pause(self, queue: MessageQueue) -> None:
        self.paused.setdefault(queue)

    def resume(self, queue: MessageQueue) -> None:
        self.paused.pop(queue, None)
        runner = self.held(queue)
        if runner is not None and runner.grant.messages.waiting:
            self.look(runner)


class PollRunner:
    """One grant of one queue."""

    __slots__ = ("_model", "grant", "queue")

    def __init__(self, model: PollModel, queue: HeldQueue, grant: Grant) -> None:
        self._model = model
        self.queue = queue
        self.grant = grant

    async def run(self) -> None:
        self._model.began(self)
        while self.grant.alive:
            self._model.look(self)
            await self.grant.rest()
        self._model.ended(self)
        self.queue.look()

    def position_moved(self) -> None:
        self._model.moved(self)

    def resume(self) -> None:
        pass

    def give_up(self) -> None:
        pass

    @property
    def is_back(self) -> bool:
        """A seek went to before what is done."""
        return self.grant.messages.commit_offset < self.queue.ownership.offset

    def take(self, count: int) -> list[MessageExt]:
        """Hand out the next messages, at most `count`."""
        messages, ownership = self.grant.messages, self.queue.ownership
        batch = messages.take(count)
        messages.commit()  # they are the caller's: what is not done yet is not held here
        self.grant.wake_pull()
        if batch and not ownership.running:
            ownership.call_started()
            self.queue.call_started_ms = self.queue.ctx.host.clock.boot_ms()
        return batch

    def settle(self) -> None:
        """Count what was handed out as done."""
        ownership, offset = self.queue.ownership, self.grant.messages.commit_offset
        if ownership.running:
            ownership.call_ended(self.grant.token, offset, 0)
        else:
            ownership.progressed(self.grant.token, offset)
        self.queue.session.changed(ownership)

    def take_back(self) -> None:
        """Count what was handed out since the last `settle` as not done."""
        ownership = self.queue.ownership
        if ownership.running:
            ownership.call_ended(self.grant.token, ownership.offset, 0)
            self.queue.session.changed(ownership)

    def seek(self, offset: int) -> None:
        self.grant.messages.seek(offset)
        self.queue.fetch(self.grant, self)  # the pull in flight may wait at the broker for what follows the old position
