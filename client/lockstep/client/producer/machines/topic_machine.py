"""One topic of one producer: its layout, a machine for each queue that is sent to, and the choice of the queue of each unkeyed message.
Pure."""

from collections.abc import Callable, Iterable, Mapping

from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.broker_state import BrokerResponses
from lockstep.client.producer.machines.effects import ExpectLayout, Refuse, Release
from lockstep.client.producer.machines.encoder import FrameEncoder
from lockstep.client.producer.machines.in_flight_frame import InFlightFrame
from lockstep.client.producer.machines.latency_fault import BrokerLatencies
from lockstep.client.producer.machines.live_queues import LiveQueues
from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.machines.queue_machine import QueueMachine, SendConnection
from lockstep.client.producer.machines.routing import QUEUE_WIDE, Route, number_of_key
from lockstep.client.producer.machines.sequencer import Sequencer
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LocalProtocolError, TopicNotExistError
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout

SPREAD = 64
"""The unkeyed messages in flight are spread over at least this number of queues, if there are so many."""
RUN_MAX = 256
"""The largest number of unkeyed messages in a row that go to one queue."""


class TopicMachine:
    """The machines of a layout's writable queues, created when they are first needed, and the round robin over the live ones.

    An event of a broker costs one step for the broker and one for each of its queues that is stalled or has waiting sends. An event of a
    queue costs a constant number of steps.

    After each call the shell takes `due`, and the effects of each queue that was concerned.
    """

    __slots__ = (
        "_brokers",
        "_by_queue",
        "_computed_for",
        "_config",
        "_encoder",
        "_latencies",
        "_live",
        "_machines",
        "_make_sequencer",
        "_random_below",
        "_recompute_ms",
        "_stalled",
        "_stranded",
        "_writable",
        "due",
        "layout",
    )

    def __init__(
        self,
        layout: TopicLayout,
        config: ProducerConfig,
        make_sequencer: Callable[[], Sequencer],
        encoder: FrameEncoder,
        random_below: Callable[[int], int],
        up: Iterable[str] = (),
        latencies: BrokerLatencies | None = None,
    ) -> None:
        """`random_below` chooses the queue of the first unkeyed message; `up` names the connected brokers."""
        self.layout = layout
        encoder.adopt(layout)
        self.due: list[QueueMachine] = []
        """The queues that are to be run at the end of this loop turn."""
        self._config = config
        self._make_sequencer = make_sequencer
        self._encoder = encoder
        self._random_below = random_below
        self._latencies = latencies
        self._computed_for = (0, 0)
        """The versions of the latencies and of the live brokers from which the brokers to leave out were computed last."""
        self._recompute_ms: int | None = None
        """When they are to be computed again; None if only a new version changes them."""
        self._by_queue: dict[MessageQueue, QueueMachine] = {}
        """All machines, also those of queues that the layout no longer has."""
        self._machines: list[QueueMachine | None] = []
        """By queue number; None if nothing has been sent to the queue."""
        self._brokers: dict[str, BrokerResponses] = {}
        self._stalled: dict[str, dict[QueueMachine, None]] = {}
        """The queues of each broker that count as stalled, in the order in which they stalled."""
        self._stranded: dict[QueueMachine, None] = {}
        """Stalled queues in which unkeyed sends wait because no queue is live."""
        self._writable = layout
        """The last layout with writable queues: after a deletion sends are still assigned to its queues, and fail there."""
        self._live = self._make_live_queues(frozenset(up))

    # -------------------------------------------------------------------------------------------------------------- choosing

    def next(self, now_ms: int, in_flight_count: int = 0) -> QueueMachine:
        """Return the next queue by round robin over those of live brokers that are not avoided for their latency; over all if none is
        live.

        If many messages are in flight, several in a row go to one queue, so that each frame holds several records however many queues
        there are.
        """
        if self._latencies is not None:
            self._leave_out_slow_brokers(self._latencies, now_ms)
        run = in_flight_count // SPREAD
        number = self._live.next(run if run < RUN_MAX else RUN_MAX)
        return self._machines[number] or self._machine(number)

    def of_keys(self, sharding_keys: Mapping[int, str]) -> list[tuple[QueueMachine, list[int]]]:
        """Return each queue to which any of these keys belongs, in the order of the layout, with the positions of its keys."""
        count = len(self._writable.write_queues)
        shares: dict[int, list[int]] = {}
        for place, key in sharding_keys.items():
            shares.setdefault(number_of_key(key, count), []).append(place)
        return [(self._machine(number), shares[number]) for number in sorted(shares)]

    def of_queue(self, queue: MessageQueue) -> QueueMachine | None:
        """Return the queue's machine; None if the layout has no such writable queue."""
        number = self._writable.write_number_of.get(queue)
        return None if number is None else self._machine(number)

    def machine_for(self, route: Route, now_ms: int, in_flight_count: int = 0) -> QueueMachine:
        """Return the queue of a route in the present layout, whether the broker of a key is live or not (without a key, see `next`).

        Raise LocalProtocolError if a named queue is not in the layout.
        """
        if not route.keys:
            return self.next(now_ms, in_flight_count)
        key = route.keys[0]
        if key != QUEUE_WIDE:
            number = number_of_key(key, len(self._writable.write_queues))
            return self._machines[number] or self._machine(number)
        queue = route.queue if route.pick is None else route.pick(self.layout, QUEUE_WIDE)
        machine = None if queue is None else self.of_queue(queue)
        if machine is None and queue is not None and route.may_be_closed:
            machine = self._opened(queue)
        if machine is None:
            count = len(self.layout.write_queues)
            raise LocalProtocolError(
                f"{queue} is not one of the {count} writable queues of topic {self.layout.topic}: see SendResult.queue"
            )
        return machine

    @property
    def any_live(self) -> bool:
        """Return whether any queue is live."""
        return self._live.any_live

    @property
    def machines(self) -> Iterable[QueueMachine]:
        """Return the machines of all queues that were sent to."""
        return self._by_queue.values()

    @property
    def idle(self) -> bool:
        """Return whether nothing is pending or in flight."""
        return all(machine.idle for machine in self._by_queue.values())

    @property
    def deletion(self) -> TopicNotExistError | None:
        """Return why nothing can be sent, if so: the topic was deleted, or has no writable queue any more."""
        return None if self.layout.write_queues else _deleted(self.layout)

    # ----------------------------------------------------------------------------------------------------------------- sends

    def withdraw(self, pending: PendingSend) -> list[PendingSend]:
        """Withdraw a send whose caller no longer waits. Return the parts that were not written yet: they no longer count as in flight."""
        withdrawn: list[PendingSend] = []
        for part in pending.leaves():
            machine = None if part.queue is None else self._by_queue.get(part.queue)
            if machine is not None and machine.withdraw(part):
                withdrawn.append(part)
        return withdrawn

    def run(self, machine: QueueMachine, now_ms: int, connection: SendConnection | None) -> None:
        """Run a due queue, and write its next frame to the connection to its broker; None if it is not connected."""
        machine.handle_due(now_ms, connected=connection is not None)
        if machine.stalled or self._stalled:
            self._relieve(machine, now_ms)
        machine.write_next(now_ms, connection, may_move=machine.retries and self._has_other(machine))
        if machine.leaving:
            leaving, machine.leaving = machine.leaving, []
            self._move(leaving, machine, now_ms)
        if machine.stalled or self._stalled:
            self._relieve(machine, now_ms)

    def handle_response(self, machine: QueueMachine, frame: InFlightFrame, response: Command, now_ms: int) -> None:
        """Handle the response to a write of the frame."""
        version = machine.handle_response(frame, response, now_ms)
        if machine.stalled or self._stalled:
            self._count_stalled(machine)
        if version is not None:
            # If the higher layout is known already, the later sends were assigned again before: the frame goes ahead of them.
            for pending in reversed(machine.take_older(self.layout.version)):
                self._pick_again(machine, pending, ahead=True)
            machine.effects.append(ExpectLayout(version))

    # --------------------------------------------------------------------------------------------------------------- changes

    def adopt(self, layout: TopicLayout, up: Iterable[str]) -> None:
        """Adopt a higher layout: the queues of sends that were picked from a lower one are picked again, in order. `up`: the connected
        brokers."""
        self.layout = layout
        self._encoder.adopt(layout)
        if not layout.write_queues:
            for machine in self._by_queue.values():
                machine.deletion = _deleted(layout)
                self.due.append(machine)
            return
        self._writable = layout
        self._live = self._make_live_queues(frozenset(up))
        for machine in list(self._by_queue.values()):
            machine.deletion = None
            for pending in machine.take_older(layout.version):
                self._pick_again(machine, pending)
            if machine.run_at_ms == 0:
                self.due.append(machine)

    def link_changed(self, broker_name: str, *, up: bool) -> None:
        """Handle that the link to a broker went up or down."""
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        broker.up = up
        if up:
            broker.connects += 1
            self.due += self._stalled.get(broker_name, ())
        if self._live.has_broker(broker_name):
            self._live.set_up(broker_name, up)
        self._wake_stranded()

    def has_broker(self, name: str) -> bool:
        """Return whether a queue of this broker is, or was, in the layout."""
        return name in self._brokers

    # ----------------------------------------------------------------------------------------------------------------- parts

    def _has_other(self, machine: QueueMachine) -> bool:
        """Return whether a queue of another broker is live."""
        number = self._number_of(machine)
        if number is None:
            return any(name != machine.queue.broker_name for name in self._live.live_brokers)
        return self._live.has_other_broker(number)

    def _number_of(self, machine: QueueMachine) -> int | None:
        """Return the queue's number among the writable ones; None if the layout no longer has it."""
        return self._writable.write_number_of.get(machine.queue)

    def _count_stalled(self, machine: QueueMachine) -> None:
        """Update whether the queue is live."""
        name = machine.broker.name
        stalled = self._stalled.get(name, {})
        if machine.stalled == (machine in stalled):
            return
        if machine.stalled:
            stalled[machine] = None
            self._stalled[name] = stalled
        else:
            del stalled[machine]
            if not stalled:
                del self._stalled[name]
        number = self._number_of(machine)
        if number is not None:
            self._live.set_stalled(number, machine.stalled)
            self._wake_stranded()

    def _relieve(self, machine: QueueMachine, now_ms: int) -> None:
        """Move the unkeyed sends of a stalled queue to other queues, if there is a live one: some now, the others in further runs."""
        self._count_stalled(machine)
        if not machine.stalled or not machine.unkeyed_waits:
            return
        if not self._live.any_live:
            self._stranded[machine] = None
            return
        self._move(machine.take_unkeyed(), machine, now_ms)
        if machine.unkeyed_waits:
            machine.run_at_ms = 0

    def _wake_stranded(self) -> None:
        if self._stranded and self._live.any_live:
            self.due += self._stranded
            self._stranded = {}

    def _move(self, sends: Iterable[PendingSend], away_from: QueueMachine, now_ms: int) -> None:
        """Move unkeyed sends to other queues, one of which must be live."""
        if self._latencies is not None:
            self._leave_out_slow_brokers(self._latencies, now_ms)
        number = self._number_of(away_from)
        for pending in sends:
            machine = self._machine(self._live.next() if number is None else self._live.next_elsewhere(number))
            machine.add(pending)
            self.due.append(machine)

    def _pick_again(self, machine: QueueMachine, pending: PendingSend, *, ahead: bool = False) -> None:
        """Assign a send that was taken from this queue to the queue that the present layout gives it."""
        if pending.done():
            machine.effects.append(Release([pending]))
            return
        pick, layout = pending.route.pick, self.layout
        assert pick is not None
        try:
            if not layout.write_queues:
                raise _deleted(layout)
            parts = pending.split(lambda key: pick(layout, key))
        except Exception as error:  # listener: the user's selector
            pending.failed = True
            machine.effects.append(Refuse(pending, error))
            return
        for queue, part in parts.items():
            part.version = layout.version
            picked = self.of_queue(queue)
            assert picked is not None
            picked.add(part, ahead=ahead)
            self.due.append(picked)

    def _leave_out_slow_brokers(self, latencies: BrokerLatencies, now_ms: int) -> None:
        """Leave out the brokers that respond slowly. They are computed again only if that may have changed."""
        versions = (latencies.version, self._live.changes)
        if versions == self._computed_for and (self._recompute_ms is None or now_ms < self._recompute_ms):
            return
        live = self._live.live_brokers
        self._live.leave_out(frozenset(live) - latencies.usable(live, now_ms) if live else frozenset())
        self._computed_for, self._recompute_ms = versions, latencies.next_change_ms(now_ms)

    def _make_live_queues(self, up: frozenset[str]) -> LiveQueues:
        """Return the writable queues of the layout with the state of each."""
        queues = self._writable.write_queues
        live = LiveQueues([queue.broker_name for queue in queues], self._random_below(len(queues)))
        for entry in self._writable.entries:
            name = entry.broker_name
            broker = self._brokers.get(name)
            if broker is None:
                broker = self._brokers[name] = BrokerResponses(name)
                broker.up = name in up
            if broker.up and live.has_broker(name):
                live.set_up(name, True)
        self._machines = [None] * len(queues)
        for machine in self._by_queue.values():
            number = self._number_of(machine)
            if number is not None and machine.stalled:
                live.set_stalled(number, True)
        self._computed_for = (-1, -1)
        return live

    def _machine(self, number: int) -> QueueMachine:
        found = self._machines[number]
        if found is not None:
            return found
        machine = self._machines[number] = self._opened(self._writable.write_queues[number])
        return machine

    def _opened(self, queue: MessageQueue) -> QueueMachine:
        """Return the machine of a queue, which the layout may lack."""
        machine = self._by_queue.get(queue)
        if machine is None:
            broker = self._brokers.setdefault(queue.broker_name, BrokerResponses(queue.broker_name))
            machine = QueueMachine(queue, broker, self._make_sequencer(), self._encoder, self._config, self._latencies)
            self._by_queue[queue] = machine
            machine.deletion = self.deletion
        return machine


def _deleted(layout: TopicLayout) -> TopicNotExistError:
    return TopicNotExistError(f"topic {layout.topic} was deleted: create it again, or send to another")
