"""One topic of one producer: its layout, a QueueMachine for each queue that is sent to, and which queue takes the next unkeyed message."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from lockstep.client.broker_link import BrokerLink
from lockstep.client.features import SENDING, check_features
from lockstep.client.instance import Instance
from lockstep.client.producer.backoff import ResponseTimes
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.failures import Failures
from lockstep.client.producer.flow_control import InFlightLimit
from lockstep.client.producer.latency_fault import BrokerLatencies
from lockstep.client.producer.live_queues import LiveQueues
from lockstep.client.producer.pending import Future, PendingSend
from lockstep.client.producer.queue_machine import QueueMachine
from lockstep.client.producer.selector import number_of_key
from lockstep.client.producer.sequencer import GivenId, Sequencer
from lockstep.client.producer.write_scheduler import WriteScheduler
from lockstep.protocol.errors import LockstepError, RequestCodeNotSupportedError, TopicNotExistError
from lockstep.protocol.queue import LayoutVersion, MessageQueue, TopicLayout
from lockstep.protocol.record import INT32, QUEUE_ID_AT
from lockstep.runtime.endpoint import Endpoint


@dataclass(slots=True)
class Shared:
    """What the topics and queues of one producer have in common."""

    instance: Instance
    config: ProducerConfig
    gate: InFlightLimit
    departures: WriteScheduler
    failures: Failures
    given_id: GivenId | None = None
    latencies: BrokerLatencies | None = None
    """None: latency fault tolerance is off."""
    possible_duplicates: int = 0


def readdress(parcel: PendingSend, queue_id: int) -> None:
    """The parcel's records for another queue: no digest covers the queue id."""
    data, at, number = bytearray(parcel.data), 0, INT32.pack(queue_id)
    for size in parcel.sizes or (len(data),):
        data[at + QUEUE_ID_AT : at + QUEUE_ID_AT + 4] = number
        at += size
    parcel.data = bytes(data)


def _deleted(layout: TopicLayout) -> TopicNotExistError:
    return TopicNotExistError(f"topic {layout.topic} was deleted: create it again, or send to another")


class BrokerState:
    """One broker of the topic, to all of its queues here."""

    __slots__ = ("_instance", "_link", "answer_times", "connects", "name", "stalled")

    def __init__(self, instance: Instance, name: str) -> None:
        self.name = name
        self.answer_times = ResponseTimes()
        self.connects = 0
        """How often the broker was connected."""
        self.stalled: dict[QueueMachine, None] = {}
        """Its queues that are stalled, in the order in which they were."""
        self._instance = instance
        self._link: BrokerLink | None = None

    @property
    def link(self) -> BrokerLink | None:
        """None: the broker's address is not known."""
        if self._link is None:
            self._link = self._instance.link(self.name)
        return self._link

    @property
    def endpoint(self) -> Endpoint | None:
        """The open connection; None: there is none."""
        link = self.link
        endpoint = None if link is None else link.endpoint
        return None if endpoint is None or endpoint.closed else endpoint


class TopicMachine:
    """The senders of a layout's writable queues, made when they are first needed, and the round robin over those that take messages now.

    What happens to a broker costs a step for the broker and one for each queue that has something to do with it: stalled, or with sends
    that wait. What happens to a queue costs a constant number of steps.
    """

    __slots__ = (
        "_by_queue",
        "_counted",
        "_live",
        "_look_ms",
        "_placed",
        "_producer_id",
        "_senders",
        "_shared",
        "_sides",
        "_stranded",
        "failures",
        "gate",
        "latencies",
        "layout",
    )

    def __init__(self, shared: Shared, layout: TopicLayout) -> None:
        self.layout = layout
        self.gate = shared.gate
        self.failures = shared.failures
        self.latencies = shared.latencies
        self._shared = shared
        self._counted = (0, 0)
        """Versions of the latencies and of the live brokers when it was last found out who is left out."""
        self._look_ms: int | None = None
        """When that is to be done again."""
        self._producer_id = shared.instance.host.random.token(16).hex()
        """Its own unless one is given: after a topic was away, sequences begin at 0 again, and brokers remember those of before."""
        self._by_queue: dict[MessageQueue, QueueMachine] = {}
        self._senders: list[QueueMachine | None] = []
        """By number; None: nothing has been sent there."""
        self._sides: dict[str, BrokerState] = {}
        self._stranded: dict[QueueMachine, None] = {}
        """Stalled queues where unkeyed sends wait, while no other queue takes any."""
        self._placed = layout
        """The last layout that has writable queues: after a deletion sends find their queue in it, and fail there."""
        self._live = self._place()

    # -------------------------------------------------------------------------------------------------------------- choosing

    def next(self) -> QueueMachine:
        """Round robin over the queues of live brokers that are not left out for their latency; over all while none is live."""
        if self.latencies is not None:
            self._leave_out(self.latencies)
        return self._sender(self._live.next())

    def of_key(self, sharding_key: str) -> QueueMachine:
        """The queue to which the key belongs, whether or not its broker lives."""
        return self._sender(number_of_key(sharding_key, len(self._placed.write_queues)))

    def of_keys(self, sharding_keys: Mapping[int, str]) -> list[tuple[QueueMachine, list[int]]]:
        """Returns each queue to which any of these keys belongs, in the order of the layout, with the places of its keys."""
        count = len(self._placed.write_queues)
        shares: dict[int, list[int]] = {}
        for place, key in sharding_keys.items():
            shares.setdefault(number_of_key(key, count), []).append(place)
        return [(self._sender(number), shares[number]) for number in sorted(shares)]

    def of_queue(self, queue: MessageQueue) -> QueueMachine | None:
        """None: the layout has no such writable queue."""
        sender = self._by_queue.get(queue)
        if sender is None:
            number = self._placed.write_number_of.get(queue)
            return None if number is None else self._sender(number)
        return sender if sender.number is not None else None

    def has_other(self, sender: QueueMachine) -> bool:
        """A queue at another broker takes messages now."""
        if sender.number is None:
            return any(name != sender.queue.broker_name for name in self._live.live_brokers)
        return self._live.has_other_broker(sender.number)

    @property
    def any_live(self) -> bool:
        """A queue takes messages now."""
        return self._live.any_live

    @property
    def deletion(self) -> TopicNotExistError | None:
        """Why nothing can be sent: the topic was deleted, or has no writable queue any more."""
        return None if self.layout.write_queues else _deleted(self.layout)

    # --------------------------------------------------------------------------------------------------------------- changes

    def adopt(self, layout: TopicLayout) -> None:
        """A higher layout: what waits and was hashed over a lower one is picked again, in order."""
        self.layout = layout
        if not layout.write_queues:
            for sender in self._by_queue.values():
                sender.wake()
            return
        self._placed = layout
        self._live = self._place()
        for sender in list(self._by_queue.values()):
            for parcel in sender.take_older(layout.version):
                self._pick_again(parcel)

    def link_changed(self, link: BrokerLink) -> bool:
        """A broker was connected or disconnected. False: it lacks what `send` needs; what waited has failed."""
        side = self._sides.get(link.name)
        if side is None:
            return True
        if link.up:
            try:
                if link.view is not None:
                    check_features(link.view, SENDING)
            except RequestCodeNotSupportedError as error:
                self.fail_all(partial(RequestCodeNotSupportedError, error.remark))
                return False
            side.connects += 1
            for sender in side.stalled:
                sender.wake()
        if self._live.has_broker(link.name):
            self._live.set_up(link.name, link.up)
        self._wake_stranded()
        return True

    def stalled_changed(self, sender: QueueMachine) -> None:
        """A queue takes messages no longer, or again."""
        side = self._sides[sender.queue.broker_name]
        if sender.stalled:
            side.stalled[sender] = None
        else:
            side.stalled.pop(sender, None)
        if sender.number is not None:
            self._live.set_stalled(sender.number, sender.stalled)
            self._wake_stranded()

    def strand(self, sender: QueueMachine) -> None:
        """Unkeyed sends wait at this stalled queue: wake it as soon as any queue takes messages."""
        self._stranded[sender] = None

    def _wake_stranded(self) -> None:
        if self._stranded and self._live.any_live:
            stranded, self._stranded = self._stranded, {}
            for sender in stranded:
                sender.wake()

    def _leave_out(self, latencies: BrokerLatencies) -> None:
        """Find out which brokers are left out, if that may have changed."""
        versions = (latencies.version, self._live.changes)
        now_ms = self._shared.instance.host.clock.monotonic_ms()
        if versions == self._counted and (self._look_ms is None or now_ms < self._look_ms):
            return
        live = self._live.live_brokers
        self._live.leave_out(frozenset(live) - latencies.usable(live, now_ms) if live else frozenset())
        self._counted, self._look_ms = versions, latencies.next_change_ms(now_ms)

    def layout_stale(self, sender: QueueMachine, version: LayoutVersion) -> None:
        """A broker knows a higher layout than this one, which a keyed frame was hashed over.

        Where it is known here already, what waited behind the frame was picked again before the frame is: that goes ahead.
        """
        for parcel in reversed(sender.take_older(self.layout.version)):
            self._pick_again(parcel, ahead=True)
        self._shared.instance.watch.expect(self.layout.topic, version.successor)

    def refresh_route(self) -> None:
        self._shared.instance.watch.refresh_soon()

    def _place(self) -> LiveQueues:
        """The writable queues of the layout, and which of them take messages now."""
        queues = self._placed.write_queues
        live = LiveQueues([queue.broker_name for queue in queues], self._shared.instance.host.random.below(len(queues)))
        for entry in self._placed.entries:
            side = self._sides.get(entry.broker_name)
            if side is None:
                side = self._sides[entry.broker_name] = BrokerState(self._shared.instance, entry.broker_name)
            if side.link is not None and side.link.up and live.has_broker(side.name):
                live.set_up(side.name, True)
        self._senders = [None] * len(queues)
        for sender in self._by_queue.values():
            sender.number = self._placed.write_number_of.get(sender.queue)
            if sender.number is not None and sender.stalled:
                live.set_stalled(sender.number, True)
        self._counted = (-1, -1)
        return live

    def _sender(self, number: int) -> QueueMachine:
        found = self._senders[number]
        if found is not None:
            return found
        queue = self._placed.write_queues[number]
        sender = self._by_queue.get(queue)
        if sender is None:
            shared = self._shared
            self._by_queue[queue] = sender = QueueMachine(
                self,
                queue,
                self._sides[queue.broker_name],
                sequencer=self._sequencer(),
                config=shared.config,
                clock=shared.instance.host.clock,
                departures=shared.departures,
            )
            sender.number = number
        self._senders[number] = sender
        return sender

    def _sequencer(self) -> Sequencer:
        given = self._shared.given_id
        return Sequencer(self._producer_id) if given is None else Sequencer(given.producer_id, given.partition, given.epoch)

    # --------------------------------------------------------------------------------------------------------------- parcels

    def move(self, parcels: Iterable[PendingSend], away_from: QueueMachine) -> None:
        """Unkeyed parcels go on at other queues, of which one must be live."""
        if self.latencies is not None:
            self._leave_out(self.latencies)
        for parcel in parcels:
            sender = self._sender(self._live.next() if away_from.number is None else self._live.next_elsewhere(away_from.number))
            readdress(parcel, sender.queue.queue_id)
            sender.add(parcel)

    def end(self, parcels: Iterable[PendingSend]) -> None:
        """These count no longer as in flight."""
        count = byte_count = 0
        for parcel in parcels:
            count += parcel.count
            byte_count += parcel.held_bytes
        if count:
            self.gate.release(count, byte_count)

    def count_possible_duplicates(self, count: int) -> None:
        self._shared.possible_duplicates += count

    def close(self) -> None:
        for sender in self._by_queue.values():
            sender.close()

    def _pick_again(self, parcel: PendingSend, *, ahead: bool = False) -> None:
        assert parcel.pick is not None
        if parcel.future.done():
            self.end([parcel])
            return
        pick, layout = parcel.pick, self.layout
        try:
            if not layout.write_queues:
                raise _deleted(layout)
            parts = parcel.split(lambda key: pick(layout, key))
        except Exception as error:  # listener: the user's selector
            parcel.future.set_exception(error)
            self.end([parcel])
            return
        for queue, part in parts.items():
            part.version = layout.version
            readdress(part, queue.queue_id)
            sender = self.of_queue(queue)
            assert sender is not None
            sender.add(part, ahead=ahead)

    def fail_all(self, error: Callable[[], LockstepError]) -> None:
        """What waits can't be sent any more; `error` makes what each send raises."""
        for sender in self._by_queue.values():
            self.failures.add(self.endings(sender.take_all(), lambda _: error()))

    def endings(self, parcels: list[PendingSend], error: Callable[[PendingSend], Exception]) -> Iterator[None]:
        """These have failed: they are written no more when this returns. Each step tells one of them, by what `error` makes for it."""
        return self._endings([(parcel, parcel.end()) for parcel in parcels], error)

    def _endings(self, parcels: list[tuple[PendingSend, Future]], error: Callable[[PendingSend], Exception]) -> Iterator[None]:
        for parcel, future in parcels:
            if not future.done():
                future.set_exception(error(parcel))
            self.end([parcel])
            yield
