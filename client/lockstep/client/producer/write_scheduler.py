"""Runs the queues of one producer and writes their frames once per loop turn, at its end.

Events that concern many queues at once (their broker is connected or gone, their deadlines come) are handled here too, some in each turn.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from lockstep.client.producer.queue_machine import QueueMachine
from lockstep.client.producer.topic_machine import TopicMachine
from lockstep.runtime.endpoint import Endpoint

QUEUES_PER_TURN = 256
"""The others are run in the next turns: 10,000 queues of a broker that is connected again must not block the loop for as long as all of
them take."""


class WriteScheduler:
    """Runs each scheduled queue, and writes once to each connection."""

    __slots__ = ("_closed", "_due", "_endpoint", "_handle", "_loop", "_run")

    def __init__(
        self, run: Callable[[TopicMachine, QueueMachine, Endpoint | None], None], endpoint: Callable[[QueueMachine], Endpoint | None]
    ) -> None:
        """`endpoint` returns the open connection to a queue's broker, with which the queue is then run."""
        self._closed = False
        self._run = run
        self._endpoint = endpoint
        self._due: OrderedDict[QueueMachine, TopicMachine] = OrderedDict()
        """In the order in which they were scheduled."""
        self._handle: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, topic: TopicMachine, machine: QueueMachine) -> None:
        """Run the queue at the end of this loop turn, after everything else that sends in it."""
        if self._closed:
            return
        self._due[machine] = topic
        machine.is_due = True
        if self._handle is None:
            self._handle = self._loop.call_soon(self._run_due)

    def add_last(self, topic: TopicMachine, machine: QueueMachine) -> None:
        """As `add`, but after everything that is scheduled in the loop now: a caller whose send was just acknowledged may send more
        first."""
        if self._closed:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._due[machine] = topic
        machine.is_due = True
        self._handle = self._loop.call_soon(self._run_due)

    def close(self) -> None:
        """Cancel all runs."""
        self._closed = True
        self._due.clear()
        if self._handle is not None:
            self._handle.cancel()

    def _run_due(self) -> None:
        self._handle = None
        due = [(machine, topic, self._endpoint(machine)) for machine, topic in self._take()]
        if self._due:
            self._handle = self._loop.call_soon(self._run_due)
        held = dict.fromkeys(endpoint for _, _, endpoint in due if endpoint is not None)
        for each in held:
            each.hold()
        try:
            for machine, topic, endpoint in due:
                self._run(topic, machine, endpoint)
        finally:
            for each in held:
                each.flush()

    def _take(self) -> list[tuple[QueueMachine, TopicMachine]]:
        if len(self._due) <= QUEUES_PER_TURN:
            taken = list(self._due.items())
            self._due.clear()
        else:
            taken = [self._due.popitem(last=False) for _ in range(QUEUES_PER_TURN)]
        for machine, _ in taken:
            machine.is_due = False
        return taken
