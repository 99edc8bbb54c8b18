"""The shell of one producer. It carries out the effects of its queues' machines, and is the only part with loop, clock, connections and
logs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count

from lockstep.client.broker_link import BrokerLink
from lockstep.client.errors import Outcome, PrecedingSendError, QueueUnavailableError, SendTimeoutError
from lockstep.client.instance import Instance
from lockstep.client.producer.batch import Batch
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.effects import (
    Complete,
    ExpectLayout,
    Fail,
    LogWarning,
    PossibleDuplicates,
    RefreshRoute,
    Refuse,
    Release,
    Write,
)
from lockstep.client.producer.machines.encoder import FrameEncoder, HalfEncoder, TimerEncoder
from lockstep.client.producer.machines.in_flight_frame import InFlightFrame
from lockstep.client.producer.machines.latency_fault import BrokerLatencies
from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.machines.queue_machine import QueueMachine
from lockstep.client.producer.machines.send_fifo import NEVER_MS
from lockstep.client.producer.machines.sequencer import GivenId, Sequencer
from lockstep.client.producer.machines.topic_machine import TopicMachine
from lockstep.client.producer.oneway import OnewayRecords
from lockstep.client.producer.pacing.ends import Ends
from lockstep.client.producer.pacing.expiry import Expiry
from lockstep.client.producer.pacing.flow_control import InFlightLimit
from lockstep.client.producer.pacing.write_scheduler import WriteScheduler
from lockstep.client.producer.result import SendResult
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.delays import LEVELS_MS
from lockstep.protocol.errors import BrokerError, StateError, TopicNotExistError, broker_error
from lockstep.protocol.messages.ids import UNIQUE_PREFIX_BYTES, UniqueKeys
from lockstep.protocol.names import TIMER_TOPIC
from lockstep.protocol.topics.queue import LayoutVersion, MessageQueue, TopicLayout
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.logs.log import get_logger

log = get_logger("lockstep.client.producer")


class _Timer:
    """Runs a queue at a time (an Expiring). It is out of date if the queue was scheduled for an earlier time later."""

    __slots__ = ("_at_ms", "_machine", "_shell", "_topic")

    def __init__(self, shell: "ProducerShell", topic: TopicMachine, machine: QueueMachine, at_ms: int) -> None:
        self._shell = shell
        self._topic = topic
        self._machine = machine
        self._at_ms = at_ms

    def done(self) -> bool:
        return self._shell.timers.get(self._machine) != self._at_ms

    def expire(self) -> None:
        del self._shell.timers[self._machine]
        self._shell.timer_expired(self._topic, self._machine)


class ProducerShell:
    """The clock, connections and in-flight limit that the machines of one producer share."""

    def __init__(self, instance: Instance, config: ProducerConfig, limit: InFlightLimit, given_id: GivenId | None) -> None:
        self.instance = instance
        self.config = config
        self.possible_duplicates = 0
        """Messages that were sent to another broker, or sent again, although they may have been stored."""
        self.closed = False
        """No more frames are written."""
        self._ends = Ends(instance.host.clock)
        self.expiry = Expiry(instance.host.clock, self._ends)
        self._clock = instance.host.clock
        self._random = instance.host.random
        self._limit = limit
        self._given_id = given_id
        self._latencies = None if config.latency_faults is None else BrokerLatencies(config.latency_faults)
        self._writes = WriteScheduler(self._run, self._endpoint, instance.host.clock)
        self.timers: dict[QueueMachine, int] = {}
        """When the timer of each queue that has one is due (monotonic ms)."""
        self._oneway: dict[QueueMachine, OnewayRecords] = {}
        self.keys = UniqueKeys(instance.host.random.token(UNIQUE_PREFIX_BYTES))
        """The ids of messages."""
        self._encoder = FrameEncoder(self.keys, self._clock.wall_ms, config.compress_over_bytes)
        limit.begin(self.expiry, self._ends)
        limit.waiting.begin(self.expiry, self.now_ms)

    def close(self) -> None:
        """Stop writing and expiring."""
        self.closed = True
        self._writes.close()
        self.expiry.close()

    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    # ---------------------------------------------------------------------------------------------------------------- topics

    def open(self, layout: TopicLayout) -> TopicMachine:
        """Return a new machine for a topic."""
        producer_id, given = self._random.token(16).hex(), self._given_id

        def sequencer() -> Sequencer:
            return Sequencer(producer_id) if given is None else Sequencer(given.producer_id, given.partition, given.epoch)

        return self._topic(layout, sequencer, self._encoder)

    def open_room(self, layout: TopicLayout, room: str, group: str) -> TopicMachine:
        """Return a new machine for a topic's messages that are to wait in a room. `group`: that of the producer."""
        producer_id = self._random.token(16).hex()
        # In a room, the messages of all queues have one queue: the partition distinguishes their streams.
        partitions = count()

        def sequencer() -> Sequencer:
            return Sequencer(producer_id, next(partitions))

        plain = self._encoder
        encoder = TimerEncoder(plain, self._levels_ms) if room == TIMER_TOPIC else HalfEncoder(plain, group)
        return self._topic(layout, sequencer, encoder)

    def _topic(self, layout: TopicLayout, sequencer: Callable[[], Sequencer], encoder: FrameEncoder) -> TopicMachine:
        # Unless an id is given, each machine has its own: after a topic was removed, sequences begin at 0 again, and brokers remember the
        # earlier ones.
        return TopicMachine(layout, self.config, sequencer, encoder, self._random.below, self._up(layout), self._latencies)

    def adopt(self, topic: TopicMachine, layout: TopicLayout) -> None:
        """Adopt a higher layout of the topic."""
        topic.adopt(layout, self._up(layout))
        self._carry_out_all(topic)

    def fail_all(self, topic: TopicMachine, error: Exception) -> None:
        """Fail the pending and in-flight sends of a topic, after the last write."""
        for machine in topic.machines:
            machine.fail_all(error, self.now_ms())
        self._carry_out_all(topic)

    def link_changed(self, topic: TopicMachine, link: BrokerLink) -> None:
        """Handle that a broker was connected or disconnected."""
        if topic.has_broker(link.name):
            topic.link_changed(link.name, up=link.up)
            self._run_soon(topic)

    def _up(self, layout: TopicLayout) -> list[str]:
        names = [entry.broker_name for entry in layout.entries]
        return [name for name in names if (link := self.instance.link(name)) is not None and link.up]

    def _levels_ms(self, broker_name: str) -> Sequence[int]:
        """Return the broker's table of delay levels; RocketMQ's if it has not told its own."""
        link = self.instance.link(broker_name)
        reply = None if link is None else link.last_reply
        return LEVELS_MS if reply is None else reply.delay_levels_ms or LEVELS_MS

    def _endpoint(self, machine: QueueMachine) -> Endpoint | None:
        """Return the open connection to the queue's broker."""
        link = self.instance.link(machine.queue.broker_name)
        endpoint = None if link is None else link.endpoint
        return None if endpoint is None or endpoint.closed else endpoint

    # ----------------------------------------------------------------------------------------------------------------- sends

    def add(self, topic: TopicMachine, machine: QueueMachine, pending: PendingSend) -> None:
        """Add a send to the queue that the present layout gives it. Its frame is written at the end of this loop turn unless one is in
        flight."""
        if pending.route.pick is not None:
            pending.version = topic.layout.version
        machine.add(pending)
        if machine not in self._writes.due:
            self._schedule(topic, machine)

    def withdraw(self, topic: TopicMachine, pending: PendingSend) -> None:
        """Withdraw a cancelled send, unless it is written."""
        self._release(topic.withdraw(pending))

    def add_oneway(self, topic: TopicMachine, machine: QueueMachine, record: bytes, version: LayoutVersion | None) -> None:
        """Send a record at the end of this loop turn, without a response, sequence or retry."""
        records = self._oneway.get(machine)
        if records is None:
            records = self._oneway[machine] = OnewayRecords(self.config.batch_bytes_max, self.config.batch_count_max)
        records.add(record, version)
        self._writes.add(topic, machine)

    def oneway_bytes(self, machine: QueueMachine) -> int:
        """Return the bytes of the one-way records of this loop turn."""
        records = self._oneway.get(machine)
        return 0 if records is None else records.byte_count

    # --------------------------------------------------------------------------------------------------------------- running

    def _handle_result(self, topic: TopicMachine, machine: QueueMachine, frame: InFlightFrame, result: Command | Exception) -> None:
        """Handle the response to a write of the frame, or the error for which there will be none."""
        if isinstance(result, Exception):
            machine.write_lost(frame, result)
            self._writes.add(topic, machine)
            return
        topic.handle_response(machine, frame, result, self._clock.monotonic_ms())
        if topic.due:
            self._run_soon(topic)
        self._carry_out(topic, machine)
        if machine.run_at_ms == 0:
            self._writes.add_last(topic, machine)

    def timer_expired(self, topic: TopicMachine, machine: QueueMachine) -> None:
        """Run the queue at the end of this loop turn because its timer is due, if it still has something to do."""
        if machine.run_at_ms <= self._clock.monotonic_ms():
            self._writes.add(topic, machine)
        else:
            self._schedule(topic, machine)

    def _run(self, topic: TopicMachine, machine: QueueMachine, endpoint: Endpoint | None) -> None:
        if self._oneway:
            records = self._oneway.pop(machine, None)
            if records is not None:
                records.write(machine.queue, endpoint)
        topic.run(machine, self._clock.monotonic_ms(), endpoint)
        if topic.due:
            self._run_soon(topic)
        self._carry_out(topic, machine, endpoint)
        self._schedule(topic, machine)

    def _run_soon(self, topic: TopicMachine) -> None:
        """Run the queues that the topic has found due, at the end of this loop turn."""
        due, topic.due = topic.due, []
        for machine in due:
            self._writes.add(topic, machine)

    def _schedule(self, topic: TopicMachine, machine: QueueMachine) -> None:
        """Schedule the queue's next run at the time it requires, unless it runs before."""
        at_ms = machine.run_at_ms
        if at_ms == 0:
            self._writes.add(topic, machine)
        elif at_ms < self.timers.get(machine, NEVER_MS):
            self.timers[machine] = at_ms
            self.expiry.add(at_ms, _Timer(self, topic, machine, at_ms))

    # --------------------------------------------------------------------------------------------------------------- effects

    def _carry_out(self, topic: TopicMachine, machine: QueueMachine, endpoint: Endpoint | None = None) -> None:
        """Carry out the effects of a queue. `endpoint`: the connection with which it was run."""
        if not machine.effects:
            return
        effects, machine.effects = machine.effects, []
        for effect in effects:
            match effect:
                case Write():
                    assert endpoint is not None
                    frame = effect.frame
                    endpoint.send_request(
                        RequestCode.SEND_RECORDS,
                        frame.fields,
                        frame.sealed.body,
                        timeout_ms=effect.timeout_ms,
                        on_result=partial(self._handle_result, topic, machine, frame),
                    )
                case Complete():
                    self._complete(effect)
                case Release():
                    self._release(effect.sends)
                case Fail():
                    self._fail(effect)
                case Refuse():
                    self._ends.add(self._refuse(effect))
                case PossibleDuplicates():
                    self.possible_duplicates += effect.count
                case ExpectLayout():
                    self.instance.watch.expect(topic.layout.topic, effect.above.successor)
                case RefreshRoute():
                    self.instance.watch.refresh_soon()
                case LogWarning():
                    log.warning(effect.event, **effect.facts)

    def _carry_out_all(self, topic: TopicMachine) -> None:
        """Carry out the effects of all queues of a topic, and run those that are due."""
        self._run_soon(topic)
        for machine in topic.machines:
            self._carry_out(topic, machine)

    def _complete(self, effect: Complete) -> None:
        frame, result = effect.frame, effect.result
        index = 0
        for pending in frame.sends:
            waiter = pending.waiter
            if not pending.failed and not waiter.done():
                if type(waiter) is Batch:
                    waiter.stored(pending.places, [SendResult(result, at) for at in range(index, index + pending.count)])
                else:
                    waiter.set_result(SendResult(result, index))  # type: ignore[attr-defined]
            index += pending.count
        self._limit.waiting.record_stored(frame.sealed.count, frame.held_bytes)
        self._limit.release(frame.sealed.count, frame.held_bytes)

    def _fail(self, effect: Fail) -> None:
        """Fail these sends, and the later ones with their keys."""
        refused = self._limit.refuse_later(effect.queue, effect.keys) if effect.keys else iter(())
        self._ends.add(chain(self._end_failed(effect), refused))

    def _end_failed(self, effect: Fail) -> Iterator[None]:
        for pending in effect.failed:
            outcome = Outcome.UNKNOWN if pending.may_be_stored else effect.outcome
            fail_send(pending, send_error(pending, effect.queue, outcome, effect.cause, connected=effect.connected))
            yield
        self._release(effect.released)
        for pending in effect.later:
            fail_send(pending, PrecedingSendError(effect.queue, pending.keys[0] or None))
            self._release([pending])
            yield

    def _refuse(self, effect: Refuse) -> Iterator[None]:
        fail_send(effect.pending, effect.error)
        self._release([effect.pending])
        yield

    def _release(self, sends: Iterable[PendingSend]) -> None:
        count = byte_count = 0
        for pending in sends:
            count += pending.count
            byte_count += pending.held_bytes
        if count:
            self._limit.release(count, byte_count)


def fail_send(pending: PendingSend, error: Exception) -> None:
    """Fail a send, if its caller still waits."""
    waiter = pending.waiter
    if waiter.done():
        return
    if type(waiter) is Batch:
        waiter.failed(pending.places, error)
    else:
        waiter.set_exception(error)  # type: ignore[attr-defined]


def send_error(pending: PendingSend, queue: MessageQueue, outcome: Outcome, cause: Exception | None, *, connected: bool) -> Exception:
    """Return the error of the send: the broker's refusal if nothing else went wrong, otherwise an error that names the queue."""
    error: Exception
    if isinstance(cause, BrokerError) and outcome is Outcome.NOT_STORED and not (pending.keys and cause.retriable):
        error = broker_error(cause.wire_code, cause.remark)
    else:
        last = "nothing was written" if cause is None else str(cause)
        where = f"broker {queue.broker_name} is {'connected' if connected else 'not connected'}"
        deleted, given_up = isinstance(cause, TopicNotExistError), isinstance(cause, StateError)
        end = "its topic was deleted" if deleted else "it was given up" if given_up else "its deadline"
        why = f"not acknowledged before {end} ({where}; last: {last})"
        error = QueueUnavailableError(queue, outcome, why) if pending.keys else SendTimeoutError(queue.topic, outcome, why)
    error.__cause__ = cause
    return error
