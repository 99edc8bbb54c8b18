"""What a pull consumer has fetched and not handed out, queue by queue, and how far what it handed out counts as done.

    committed                 position                next offset to fetch
        │  handed out, not done  │  on the shelf            │
    ────┴────────────────────────┴──────────────────────────┴────▶ queue offset

A poll hands out messages of one queue, one queue after the other. What was handed out is done when the user says so (`settle`): with the
next poll, or by commit(). Until then a queue that is given to another member drains: a commit still counts. A queue whose grant ends takes
what is on the shelf with it.
"""

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from lockstep.client.consumer.ownership import State
from lockstep.client.consumer.pull_loop import pull
from lockstep.protocol.message import MessageExt
from lockstep.protocol.queue import MessageQueue

if TYPE_CHECKING:
    from lockstep.client.consumer.queue_worker import Grant, QueueWorker


class PollModel:
    """The queues of one pull consumer. `changed` is set with whatever somebody may wait for."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.paused: dict[MessageQueue, None] = {}
        self.seeks: dict[MessageQueue, int] = {}
        """Where a queue is to go on as soon as it is held."""
        self.void: dict[MessageQueue, int] = {}
        """Queues whose grant ended with messages handed out and not done, and the offset behind them: no commit counts for these."""
        self._held: dict[MessageQueue, tuple[QueueWorker, Grant]] = {}
        self._ready: OrderedDict[MessageQueue, None] = OrderedDict()
        """Queues with messages, the next one first."""
        self._moved: dict[MessageQueue, None] = {}
        """Queues whose position is ahead of what is done, or behind it after a seek."""

    async def serve(self, worker: "QueueWorker", holding: "Grant") -> None:
        """The runner of one holding: puts it on the shelf until its grant ends."""
        queue = worker.queue
        self._held[queue] = worker, holding
        if queue in self.seeks:
            self.seek(queue, self.seeks.pop(queue))
        while holding.alive:
            holding.run_wake.clear()
            if holding.messages.waiting:
                self._ready.setdefault(queue)
            self.changed.set()
            await holding.run_wake.wait()
        self._ended(worker, holding)
        self.changed.set()
        worker.look()

    def _ended(self, worker: "QueueWorker", holding: "Grant") -> None:
        """The grant is over: what is on the shelf goes, and what was handed out and is not done comes again."""
        queue = worker.queue
        if self._held.get(queue, (None, None))[1] is holding:
            if worker.own.running:
                self.void[queue] = holding.messages.commit_offset
            del self._held[queue]
            self._ready.pop(queue, None)
            self._moved.pop(queue, None)
        if worker.own.running:
            worker.own.call_ended(holding.epoch, 0, 0)
            worker.session.trigger()

    def moved(self, worker: "QueueWorker", holding: "Grant") -> None:
        """The position moved over what holds nothing to hand out."""
        if self.holding(worker.queue) is holding:
            self._moved.setdefault(worker.queue)

    def holding(self, queue: MessageQueue) -> "Grant | None":
        """None: the queue is not held now."""
        held = self._held.get(queue)
        return held[1] if held is not None and held[1].alive else None

    def position(self, queue: MessageQueue) -> int | None:
        """Offset of the next message that a poll hands out; None: the queue is not held now."""
        holding = self.holding(queue)
        return None if holding is None else holding.messages.commit_offset

    def take(self, count: int) -> list[MessageExt]:
        """The next messages, at most `count`, of one queue, which has its next turn behind the others; empty where none is there."""
        for _ in range(len(self._ready)):
            queue, _ = self._ready.popitem(last=False)
            worker, holding = self._held[queue]
            if queue in self.paused or not holding.alive or worker.own.state is not State.HELD:
                continue  # resume() and the next grant put it back
            messages = holding.messages
            batch = messages.take(count)
            messages.commit()  # off the shelf: what is not done yet is not held here
            if messages.waiting:
                self._ready[queue] = None
            if holding.pull_waits and messages.room():
                holding.pull_wake.set()
            if batch:
                self._moved.setdefault(queue)
                if not worker.own.running:
                    worker.own.call_started()
                    worker.call_started_ms = worker.use.host.clock.boot_ms()
                return batch
        return []

    def settle(self) -> "list[tuple[QueueWorker, Grant]]":
        """Everything handed out is done: told to the queues' sessions. Answers the queues that went back, by a seek: they are not told."""
        back: dict[MessageQueue, tuple[QueueWorker, Grant]] = {}
        for queue in list(self._moved):
            worker, holding = self._held[queue]
            if not holding.alive:
                self._ended(worker, holding)  # in this very turn of the loop: its runner has not seen it yet
                continue
            if holding.messages.commit_offset < worker.own.offset:
                if worker.own.running:
                    worker.own.call_ended(holding.epoch, worker.own.offset, 0)
                    worker.session.changed(worker.own)
                back[queue] = worker, holding
                continue
            if worker.own.running:
                worker.own.call_ended(holding.epoch, holding.messages.commit_offset, 0)
            else:
                worker.own.progressed(holding.epoch, holding.messages.commit_offset)
            worker.session.changed(worker.own)
        self._moved = dict.fromkeys(back)
        return [held for held in back.values() if held[1].alive]

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """The next poll of the queue hands out from there. A queue that is not held yet begins there."""
        held = self._held.get(queue)
        if held is None or not held[1].alive:
            self.seeks[queue] = offset
            return
        worker, holding = held
        holding.messages.seek(offset)
        self._ready.pop(queue, None)
        self._moved.setdefault(queue)
        if holding.pull_task is not None:
            holding.pull_task.cancel()  # it may stand at the broker, waiting for what comes behind the old place
        holding.pull_task = worker.use.tasks.spawn(pull(worker, holding), f"{worker.own.group} {queue} pull")

    def close(self) -> None:
        """Nobody polls any more: what was handed out and is not done comes again."""
        for worker, holding in self._held.values():
            if worker.own.running:
                worker.own.call_ended(holding.epoch, worker.own.offset, 0)
                worker.session.changed(worker.own)
        self.changed.set()

    def forget(self, queue: MessageQueue) -> None:
        """It is not this consumer's any more: what was asked of it counts no more."""
        self.seeks.pop(queue, None)
        self.paused.pop(queue, None)

    def pause(self, queue: MessageQueue) -> None:
        self.paused.setdefault(queue)

    def resume(self, queue: MessageQueue) -> None:
        self.paused.pop(queue, None)
        holding = self.holding(queue)
        if holding is not None and holding.messages.waiting:
            self._ready.setdefault(queue)
            self.changed.set()
