"""Runs the queues of one producer and writes their frames once per loop turn, at its end.

Events that concern many queues at once (their broker is connected or gone, their deadlines come) are handled here too, as many in each turn
as it has time for.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from lockstep.client.producer.machines.queue_machine import QueueMachine
from lockstep.client.producer.machines.topic_machine import TopicMachine
from lockstep.client.producer.pacing.turn_share import share_us
from lockstep.runtime.clock import Clock
from lockstep.runtime.connections.endpoint import Endpoint


class WriteScheduler:
    """Runs each scheduled queue, and writes once to each connection."""

    __slots__ = ("_closed", "_continues", "_ended_us", "_endpoint", "_handle", "_loop", "_now_us", "_run", "_running", "due")

    def __init__(
        self,
        run: Callable[[TopicMachine, QueueMachine, Endpoint | None], None],
        endpoint: Callable[[QueueMachine], Endpoint | None],
        clock: Clock,
    ) -> None:
        """`endpoint` returns the open connection to a queue's broker, with which the queue is then run."""
        self._closed = False
        self._running = False
        self._continues = False
        """The last turn had no time for all queues."""
        self._ended_us = 0
        """When it ended."""
        self._now_us = clock.monotonic_us
        self._run = run
        self._endpoint = endpoint
        self.due: OrderedDict[QueueMachine, TopicMachine] = OrderedDict()
        """The scheduled queues with their topics, in the order in which they were scheduled. Only the scheduler changes it."""
        self._handle: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, topic: TopicMachine, machine: QueueMachine) -> None:
        """Run the queue at the end of this loop turn, after everything else that sends in it."""
        if self._closed:
            return
        self.due[machine] = topic
        if self._handle is None and not self._running:
            self._handle = self._loop.call_soon(self._run_due)

    def add_last(self, topic: TopicMachine, machine: QueueMachine) -> None:
        """As `add`, but after everything that is scheduled in the loop now: a caller whose send was just acknowledged may send more
        first."""
        if self._closed:
            return
        if self._handle is not None:
            self._handle.cancel()
        self.due[machine] = topic
        self._handle = self._loop.call_soon(self._run_due)

    def close(self) -> None:
        """Cancel all runs."""
        self._closed = True
        self.due.clear()
        if self._handle is not None:
            self._handle.cancel()

    def _run_due(self) -> None:
        self._handle = None
        self._running = True
        begun_us = self._now_us()
        end_us = begun_us + share_us(begun_us - self._ended_us if self._continues else 0)
        self._continues = False
        due, held = self.due, dict[Endpoint, None]()
        try:
            while due:
                machine, topic = due.popitem(last=False)
                endpoint = self._endpoint(machine)
                if endpoint is not None and endpoint not in held:
                    held[endpoint] = None
                    endpoint.hold()
                self._run(topic, machine, endpoint)
                if due and (now_us := self._now_us()) >= end_us:
                    self._continues, self._ended_us = True, now_us
                    break
        finally:
            for each in held:
                each.flush()
            self._running = False
            if due and self._handle is None:
                self._handle = self._loop.call_soon(self._run_due)
