"""One topic of one producer: its layout, a QueueSender per writable queue, and who takes the next unkeyed message."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lockstep.client.errors import PrecedingSendFailed
from lockstep.client.features import SENDING, check_brokers
from lockstep.client.instance import Instance
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.departures import Departures
from lockstep.client.producer.gate import Gate
from lockstep.client.producer.latencies import BrokerLatencies
from lockstep.client.producer.parcel import Parcel
from lockstep.client.producer.queue_sender import QueueSender
from lockstep.client.producer.selector import RoundRobin, number_of_key
from lockstep.client.producer.sequencer import GivenId, Sequencer
from lockstep.protocol.errors import LockstepError, RequestCodeNotSupported, TopicNotExist
from lockstep.protocol.queue import LayoutVersion, MessageQueue, TopicLayout
from lockstep.protocol.record import INT32, QUEUE_ID_AT


@dataclass(slots=True)
class Shared:
    """What the topics and queues of one producer have in common."""

    instance: Instance
    config: ProducerConfig
    gate: Gate
    departures: Departures
    given_id: GivenId | None = None
    latencies: BrokerLatencies | None = None
    """None: latency fault tolerance is off."""
    possible_duplicates: int = 0


def readdress(parcel: Parcel, queue_id: int) -> None:
    """The parcel's records for another queue: no digest covers the queue id."""
    data, at, number = bytearray(parcel.data), 0, INT32.pack(queue_id)
    for size in parcel.sizes or (len(data),):
        data[at + QUEUE_ID_AT : at + QUEUE_ID_AT + 4] = number
        at += size
    parcel.data = bytes(data)


def _deleted(layout: TopicLayout) -> TopicNotExist:
    return TopicNotExist(f"topic {layout.topic} was deleted: create it again, or send to another")


class TopicSender:
    """Senders in layout order (`senders[g]` serves writable queue number g), and the round robin over those that are live."""

    __slots__ = ("_by_queue", "_counted", "_look_ms", "_producer_id", "_robin", "_shared", "latencies", "layout", "senders")

    def __init__(self, shared: Shared, layout: TopicLayout) -> None:
        self.layout = layout
        self.senders: list[QueueSender] = []
        self.latencies = shared.latencies
        self._shared = shared
        self._counted = 0
        """`latencies.version` when the round robin was counted."""
        self._look_ms: int | None = None
        """When it is to be counted again."""
        self._producer_id = shared.instance.host.random.token(16).hex()
        """Its own unless one is given: after a topic was away, sequences begin at 0 again, and brokers remember those of before."""
        self._by_queue: dict[MessageQueue, QueueSender] = {}
        self._place()

    # -------------------------------------------------------------------------------------------------------------- choosing

    def next(self) -> QueueSender:
        """Round robin over the queues of live brokers that are not left out for their latency; over all while none is live."""
        latencies = self.latencies
        if latencies is not None and (
            latencies.version != self._counted or (self._look_ms is not None and self._now_ms() >= self._look_ms)
        ):
            self.recount()
        return self.senders[self._robin.next()]

    def of_key(self, sharding_key: str) -> QueueSender:
        """The queue to which the key belongs, whether or not its broker lives."""
        return self.senders[number_of_key(sharding_key, len(self.senders))]

    def of_keys(self, sharding_keys: Sequence[str], places: Iterable[int]) -> list[tuple[QueueSender, list[int]]]:
        """Each queue to which any of these keys belongs, with the places of its keys."""
        shares: list[list[int]] = [[] for _ in self.senders]
        count = len(shares)
        for place in places:
            shares[number_of_key(sharding_keys[place], count)].append(place)
        return [(sender, own) for sender, own in zip(self.senders, shares, strict=True) if own]

    def of_queue(self, queue: MessageQueue) -> QueueSender | None:
        """None: the layout has no such writable queue."""
        sender = self._by_queue.get(queue)
        return sender if sender in self.senders else None

    def has_other(self, sender: QueueSender) -> bool:
        """A queue at another broker takes messages now."""
        broker_name = sender.queue.broker_name
        return any(other.up and not other.stalled and other.queue.broker_name != broker_name for other in self.senders)

    def has_live(self, sender: QueueSender) -> bool:
        """Another queue takes messages now."""
        return any(other.up and not other.stalled and other is not sender for other in self.senders)

    @property
    def deletion(self) -> TopicNotExist | None:
        """Why nothing can be sent: the topic was deleted, or has no writable queue any more."""
        return None if self.layout.write_queues else _deleted(self.layout)

    @property
    def busy(self) -> bool:
        return any(sender.busy for sender in self._by_queue.values())

    # --------------------------------------------------------------------------------------------------------------- changes

    def adopt(self, layout: TopicLayout) -> None:
        """A higher layout: what waits and was hashed over a lower one is picked again, in order."""
        self.layout = layout
        if not layout.write_queues:
            for sender in list(self._by_queue.values()):
                sender.topic_deleted()
            return
        self._place()
        for sender in list(self._by_queue.values()):
            for parcel in sender.take_older(layout.version):
                self._pick_again(parcel)

    def links_changed(self) -> bool:
        """A broker came up or went down, or an address became known. False: one lacks what `send` needs; what waited has failed."""
        try:
            check_brokers(self._shared.instance, self.layout, SENDING)
        except RequestCodeNotSupported as error:
            self.fail_all(partial(RequestCodeNotSupported, error.remark))
            return False
        for sender in self._by_queue.values():
            if sender.link is None:
                sender.link = self._shared.instance.link(sender.queue.broker_name)
        self.recount()
        for sender in list(self._by_queue.values()):
            sender.link_changed()
        return True

    def recount(self) -> None:
        """Which queues take part in the round robin."""
        live = [(number, sender) for number, sender in enumerate(self.senders) if sender.up and not sender.stalled]
        latencies = self.latencies
        if latencies is not None and live:
            now_ms = self._now_ms()
            usable = latencies.usable([sender.queue.broker_name for _, sender in live], now_ms)
            live = [(number, sender) for number, sender in live if sender.queue.broker_name in usable]
            self._counted, self._look_ms = latencies.version, latencies.next_change_ms(now_ms)
        self._robin.set_live([number for number, _ in live])

    def _now_ms(self) -> int:
        return self._shared.instance.host.clock.monotonic_ms()

    def relieve(self, recovered: QueueSender) -> None:
        """A queue takes messages again: what waits at stalled ones may go there."""
        for sender in self.senders:
            if sender is not recovered:
                sender.relieve()

    def layout_stale(self, sender: QueueSender, version: LayoutVersion) -> None:
        """A broker knows a higher layout than this one, which a keyed frame was hashed over.

        Where it is known here already, what waited behind the frame was picked again before the frame is: that goes ahead.
        """
        for parcel in reversed(sender.take_older(self.layout.version)):
            self._pick_again(parcel, ahead=True)
        self._shared.instance.watch.expect(self.layout.topic, version.successor)

    def refresh_route(self) -> None:
        self._shared.instance.watch.refresh_soon()

    def _place(self) -> None:
        shared, queues = self._shared, self.layout.write_queues
        for queue in queues:
            if queue not in self._by_queue:
                sender = QueueSender(
                    self,
                    queue,
                    sequencer=self._sequencer(),
                    config=shared.config,
                    clock=shared.instance.host.clock,
                    departures=shared.departures,
                )
                sender.link = shared.instance.link(queue.broker_name)
                sender.stalled = not sender.up
                self._by_queue[queue] = sender
        self.senders = [self._by_queue[queue] for queue in queues]
        self._robin = RoundRobin(len(queues), shared.instance.host.random.below(len(queues)))
        self.recount()

    def _sequencer(self) -> Sequencer:
        given = self._shared.given_id
        return Sequencer(self._producer_id) if given is None else Sequencer(given.producer_id, given.partition, given.epoch)

    # --------------------------------------------------------------------------------------------------------------- parcels

    def move(self, parcels: Iterable[Parcel], away_from: QueueSender) -> None:
        """Unkeyed parcels go on at other queues."""
        others = [sender for sender in self.senders if sender.up and not sender.stalled and sender is not away_from]
        elsewhere = [sender for sender in others if sender.queue.broker_name != away_from.queue.broker_name] or others
        assert elsewhere
        if self.latencies is not None:
            usable = self.latencies.usable([sender.queue.broker_name for sender in elsewhere], self._now_ms())
            elsewhere = [sender for sender in elsewhere if sender.queue.broker_name in usable]
        start = self._shared.instance.host.random.below(len(elsewhere))
        for number, parcel in enumerate(parcels, start):
            sender = elsewhere[number % len(elsewhere)]
            readdress(parcel, sender.queue.queue_id)
            sender.add(parcel)

    def end(self, parcels: Iterable[Parcel]) -> None:
        """These count no longer as in flight."""
        count = byte_count = 0
        for parcel in parcels:
            count += parcel.count
            byte_count += parcel.held_bytes
        if count:
            self._shared.gate.release(count, byte_count)

    def refuse_behind(self, queue: MessageQueue, keys: Iterable[str]) -> None:
        """A keyed send failed: what waits for the in-flight limit with the same key fails too, whole, and what waits behind that."""
        failed = {queue: set(keys)}

        def fails(tag: Any) -> Exception | None:
            found = next(((queue, key) for queue, keys in tag if queue in failed for key in keys if key in failed[queue]), None)
            if found is None:
                return None
            for behind, keys in tag:
                failed.setdefault(behind, set()).update(keys)
            return PrecedingSendFailed(found[0], found[1] or None)

        self._shared.gate.refuse(fails)

    def count_possible_duplicates(self, count: int) -> None:
        self._shared.possible_duplicates += count

    def close(self) -> None:
        for sender in self._by_queue.values():
            sender.close()

    def _pick_again(self, parcel: Parcel, *, ahead: bool = False) -> None:
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
            self._by_queue[queue].add(part, ahead=ahead)

    def fail_all(self, error: Callable[[], LockstepError]) -> None:
        """What waits can't be sent any more; `error` makes what each send raises."""
        for sender in self._by_queue.values():
            parcels = sender.take_all()
            for parcel in parcels:
                if not parcel.future.done():
                    parcel.future.set_exception(error())
            self.end(parcels)
