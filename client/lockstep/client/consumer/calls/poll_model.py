"""Stores the messages that a pull consumer has fetched and not returned yet, by queue, and the progress of the returned ones.

    committed                 position                next offset to fetch
        │  returned, not done    │  fetched                │
    ────┴────────────────────────┴─────────────────────────┴────▶ queue offset

A poll returns messages of one queue, one queue after another. Returned messages are done when the user declares it (`mark_done`): with the
next poll, or by commit(). Until then a queue that is assigned to another member drains: a commit still counts. When a grant ends, the
messages that were fetched under it are dropped.
"""

import asyncio
from collections import OrderedDict

from lockstep.client.consumer.calls.consume_model import ConsumeModel
from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.runner import AbstractQueueWorker, Runner, RunnerStatus
from lockstep.client.consumer.grants.ownership import OwnershipState
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.topics.queue import MessageQueue

_HELD = OwnershipState.HELD


class PollModel(ConsumeModel):
    """The consume model of a pull consumer. `changed` is set at each event that a poll or a commit may wait for."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.taken_ms = 0
        """The boot time at which messages were returned last."""
        self.paused: dict[MessageQueue, None] = {}
        self.seeks: dict[MessageQueue, int] = {}
        """The offsets at which queues are to continue as soon as they are held."""
        self.revoked: dict[MessageQueue, int] = {}
        """Queues that lost their grant while returned messages were not done, and the offset after these. They can't be committed."""
        self._held: dict[MessageQueue, PollRunner] = {}
        self._ready: OrderedDict[PollRunner, None] = OrderedDict()
        """Queues with messages, in the order in which they are served."""
        self._moved: dict[PollRunner, None] = {}
        """Queues with a position that is not the end of the done messages: after it, or before it after a seek."""

    def close(self) -> None:
        """Count returned messages that are not done as not handled, because no poll follows: they are delivered again."""
        for runner in self._held.values():
            runner.mark_not_done()
        self.changed.set()

    def runner(self, worker: AbstractQueueWorker, grant: Grant) -> "PollRunner":
        return PollRunner(self, worker, grant)

    def unassigned(self, queue: MessageQueue) -> None:
        """Forget the queue's seek and pause: they belong to this assignment."""
        self.seeks.pop(queue, None)
        self.paused.pop(queue, None)

    # -------------------------------------------------------------------------------------------------------- from the runners

    def runner_started(self, runner: "PollRunner") -> None:
        """Handle the start of a grant: the queue continues at the offset of an earlier seek, if there is one."""
        self._held[runner.worker.queue] = runner
        offset = self.seeks.pop(runner.worker.queue, None)
        if offset is not None:
            self.seek(runner.worker.queue, offset)

    def runner_woken(self, runner: "PollRunner") -> None:
        """Handle that messages may have arrived, or a commit may have been confirmed."""
        if runner.grant.messages.waiting:
            self._ready.setdefault(runner)
        self.changed.set()

    def runner_ended(self, runner: "PollRunner") -> None:
        """Handle the end of the grant: drop fetched messages. Returned messages that are not done are delivered again."""
        worker = runner.worker
        if self._held.get(worker.queue) is runner:
            if worker.ownership.running:
                self.revoked[worker.queue] = runner.grant.messages.commit_offset
            del self._held[worker.queue]
        self._ready.pop(runner, None)
        self._moved.pop(runner, None)
        if worker.ownership.running:
            worker.ownership.call_ended(runner.grant.token, 0, 0)
            worker.session.trigger()
        self.changed.set()

    def position_moved(self, runner: "PollRunner") -> None:
        """Handle that filtered messages were passed. They are done now, because no poll may follow for long: a queue whose messages are
        all filtered wakes none. Behind returned messages that are not done, the next commit includes them.
        """
        if self.held(runner.worker.queue) is not runner:
            return
        if runner.worker.ownership.running or runner in self._moved or runner.was_moved_back:
            self._moved.setdefault(runner)
        else:
            runner.mark_done()

    # ----------------------------------------------------------------------------------------------------- from the consumer

    def held(self, queue: MessageQueue) -> "PollRunner | None":
        """Return the queue's runner; None if the queue is not held now."""
        runner = self._held.get(queue)
        return runner if runner is not None and runner.grant.alive else None

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the next message that a poll returns; None if the queue is not held now."""
        runner = self.held(queue)
        return None if runner is None else runner.grant.messages.commit_offset

    def take(self, count: int) -> list[MessageExt]:
        """Return at most `count` next messages of one queue; queues take turns. Return an empty list if no queue has any."""
        ready, paused = self._ready, self.paused
        for _ in range(len(ready)):
            runner, _ = ready.popitem(last=False)
            worker, grant = runner.worker, runner.grant
            if not grant.alive or worker.ownership.state is not _HELD or (paused and worker.queue in paused):
                continue  # resume() and the next grant add it again
            messages = grant.messages
            batch = messages.take(count)
            messages.commit()  # the caller has them: messages that are not done yet are not stored here
            if messages.waiting:
                ready[runner] = None
            if grant.pull_waits and messages.room():
                grant.pull_wake.set()
            if batch:
                self._moved[runner] = None
                self.taken_ms = worker.ctx.host.clock.boot_ms()
                if not worker.ownership.running:
                    worker.ownership.call_started()
                    worker.polled_ms = self.taken_ms
                return batch
        return []

    def mark_done(self) -> "list[PollRunner]":
        """Count all returned messages as done. Return the queues that a seek moved back: their progress has to be reset instead."""
        back: list[PollRunner] = []
        for runner in list(self._moved):
            if not runner.grant.alive:
                self.runner_ended(runner)  # in this very turn of the loop: its task has not handled it yet
            elif runner.was_moved_back:
                runner.mark_not_done()
                back.append(runner)
            else:
                runner.mark_done()
        self._moved = dict.fromkeys(back)
        return back

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Return messages from `offset` on in the next poll of the queue. A queue that is not held yet begins there."""
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
            self.runner_woken(runner)


class PollRunner(Runner):
    """One grant of one queue."""

    __slots__ = ("_model",)

    def __init__(self, model: PollModel, worker: AbstractQueueWorker, grant: Grant) -> None:
        Runner.__init__(self, worker, grant)
        self._model = model

    async def run(self) -> None:
        self._model.runner_started(self)
        while self.grant.alive:
            self._model.runner_woken(self)
            await self.grant.rest()
        self._model.runner_ended(self)
        self.worker.forget_if_done()

    def position_moved(self) -> None:
        self._model.position_moved(self)

    def status(self) -> RunnerStatus:
        return RunnerStatus(uncommitted=max(0, self.grant.messages.commit_offset - self.worker.ownership.offset))

    @property
    def was_moved_back(self) -> bool:
        """Return whether a seek went to an offset before the end of the done messages."""
        return self.grant.messages.commit_offset < self.worker.ownership.offset

    def mark_done(self) -> None:
        """Count returned messages as done."""
        ownership, offset = self.worker.ownership, self.grant.messages.commit_offset
        if ownership.running:
            ownership.call_ended(self.grant.token, offset, 0)
        else:
            ownership.progressed(self.grant.token, offset)
        self.worker.session.changed(ownership)

    def mark_not_done(self) -> None:
        """Count the messages that were returned since the last `mark_done` as not done."""
        ownership = self.worker.ownership
        if ownership.running:
            ownership.call_ended(self.grant.token, ownership.offset, 0)
            self.worker.session.changed(ownership)

    def seek(self, offset: int) -> None:
        self.grant.messages.seek(offset)
        self.worker.fetch(self.grant, self)  # the pull in flight may wait at the broker for messages after the old position
