"""Reports the work that is pending in the calm: sends, delayed messages, messages that a group has not handled or polled."""

from collections.abc import Iterable

from lockstep.broker.app import Broker
from lockstep.broker.tables.timer_table import TIMES_OF_DAY
from lockstep.protocol.delays import format_delay, queue_delay_ms
from lockstep.protocol.names import SCHEDULE_TOPIC, retry_topic
from sweep.events.producers import DelayedSendAcked, SendAcked, SendBegan, SendFailed
from sweep.events.replicas import MasterOpened
from sweep.settings import MAILING, NEWS, READERS, TOPIC
from sweep.transactions import open_halves
from sweep.universe import Universe

SENDS_HEAL_S = 10.0
"""A send that begins this long after the calm must be acknowledged."""
PRECEDING = "PrecedingSendError"
OFFSETS_END = 1 << 48
SOON_MS = 60_000
"""A timer that is due later does not count as pending in the calm."""


def check_sends_recover(universe: Universe, calm_s: float) -> None:
    """Check that messages sent some time after the calm, and after the last promotion, are acknowledged. One may fail with an earlier one
    of its key, sent before."""
    history = universe.history
    # An operator takes its time to find a copy that may serve.
    opened_s = max((event.t for event in history.of(MasterOpened)), default=0.0) if universe.setting.operated else 0.0
    healed_s = max(calm_s, opened_s) + SENDS_HEAL_S
    begun = {event.body: event for event in history.of(SendBegan)}
    failed = {event.body: event for event in history.of(SendFailed)}
    earlier = {}
    for body, failure in failed.items():
        if begun[body].t <= healed_s and PRECEDING not in failure.error:
            earlier[begun[body].key] = failure.t
    late = {body: event for body, event in begun.items() if event.t > healed_s}
    for body in [acked.body for acked in history.of(SendAcked)] + [acked.body for acked in history.of(DelayedSendAcked)]:
        late.pop(body, None)
    for body, event in list(late.items())[:3]:
        ended = failed.get(body)
        if ended is None or PRECEDING not in ended.error or event.t > earlier.get(event.key, 0.0):
            universe.record_violation("sends are acknowledged again", f"{body!r} sent at {event.t:.3f}: {ended or 'never ended'}")


def unconsumed(universe: Universe) -> list[str]:
    """Return one line for each queue that a group has not consumed to the end, and for delayed messages; empty if nothing is pending."""
    brokers, topics = universe.open_brokers(), universe.setting.topics
    found = [f"{name} is not open" for name in universe.brokers if name not in {broker.config.name for broker in brokers}]
    for broker in brokers:
        for group in universe.setting.groups:
            found += _not_consumed(broker, group, topics)
        if universe.setting.concurrent:
            found += _not_consumed(broker, MAILING, (TOPIC, retry_topic(MAILING)))
        if universe.setting.broadcast:
            found += _not_read(universe, broker)
        if universe.setting.readers:
            found += _not_consumed(broker, READERS, (TOPIC,))
        if universe.setting.concurrent:
            found += _not_delivered(broker)
        if universe.setting.timer_share or universe.setting.delayed_share:
            found += _waiting_timers(universe, broker)
    return [*found, *open_halves(universe)]


def _waiting_timers(universe: Universe, broker: Broker) -> list[str]:
    """Return the number of timers that are due, or will be soon. A clock that was set makes times of day far."""
    name, timers, store = broker.config.name, broker.state.timers, broker._store
    if store is None:
        return []
    now_ms, wall_ms = store.now_ms(), int(universe.machine(universe.brokers[name]).wall_s() * 1_000)
    clock_ms = {TIMES_OF_DAY: min(now_ms, wall_ms)}
    waiting = [timer for part in timers.below(OFFSETS_END) for timer in part]
    soon = sum(timers.present_ms(timer) - clock_ms.get(timer.era, now_ms) < SOON_MS for timer in waiting)
    return [f"{name}: {soon} of {len(timers)} timers are due"] if soon else []


def _not_consumed(broker: Broker, group: str, topics: Iterable[str]) -> list[str]:
    coordination = broker.state.coordination
    status = coordination.status.read(group, 0, lambda _: "")
    queues = {} if status is None else {(queue.topic, queue.queue_id): queue for queue in status.queues}
    found = []
    for key in [(topic, queue_id) for topic in topics for queue_id in coordination.starts.own_queue_ids(topic)]:
        queue = queues.get(key)
        if queue is None or max(0, queue.committed_offset) < queue.max_offset:
            found.append(f"{group} {broker.config.name}:{key} {queue}")
    return found


def _not_read(universe: Universe, broker: Broker) -> list[str]:
    """Return the queues whose end is not in every member's file."""
    name, store, found = broker.config.name, broker._store, []
    queues = broker.state.coordination.starts.own_queue_ids(TOPIC) if store is not None else ()
    ends = {queue_id: store.bounds(TOPIC, queue_id)[1] for queue_id in queues if store is not None}
    for address in universe.consumers:
        process = universe.running(address)
        controls = None if process is None else universe.controls.get(process.number)
        written = {} if controls is None or controls.written is None else controls.written()
        for queue_id, end in ends.items():
            at = written.get((name, queue_id))
            if at != end:
                found.append(f"{NEWS} on {address} {name}:{TOPIC}:{queue_id} is at {at} of {end}")
    return found


def _not_delivered(broker: Broker) -> list[str]:
    name, delays, store = broker.config.name, broker.state.delays, broker._store
    if store is None:
        return []
    found = []
    for queue_id in store.queue_ids(SCHEDULE_TOPIC):
        end, at = store.bounds(SCHEDULE_TOPIC, queue_id)[1], delays.next_offset(queue_id)
        if at < end:
            found.append(f"{name}: retries delayed by {format_delay(queue_delay_ms(queue_id))} are at {at} of {end}")
    return found
