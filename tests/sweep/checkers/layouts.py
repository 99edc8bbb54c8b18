"""T1, T2: topics and their layouts at the end.

T1: every acknowledged message that survived is in a queue of the layout in force, unless its topic was deleted.

A topic without a layout that was not deleted is the worst violation: no client can find its messages.

T2: there are no more topics than `topics_max`, except those of groups. Several brokers may each create the last one at the same time, so
the limit is low only in a world with one broker.
"""

from sweep.checkers.facts import Brokers, Deletions
from sweep.checkers.violation import Violation
from sweep.events.producers import FirstSendAcked, SendAcked
from sweep.events.universe import LayoutInForce, LayoutsRead
from sweep.history import History


def check(history: History) -> list[Violation]:
    read = history.of(LayoutsRead)
    if not read:
        return []  # the universe ended earlier; unreadable layouts are a separate violation
    counts = {event.topic: dict(event.counts) for event in history.of(LayoutInForce)}
    brokers, deletions = Brokers(history), Deletions(history)
    found = []
    own = [topic for topic in counts if not topic.startswith(("%RETRY%", "%DLQ%"))]
    if len(own) > read[-1].topics_max:
        text = f"apart from the topics of groups the cluster has {len(own)}, topics_max allows {read[-1].topics_max}: {sorted(own)}"
        found.append(Violation("T2", read[-1].t, text))
    for place, event in enumerate(history):
        if not isinstance(event, SendAcked | FirstSendAcked) or deletions.any_of(event.queue.topic):
            continue
        queue = event.queue
        there = counts.get(queue.topic, {})
        if queue.queue < there.get(queue.broker, 0) or any(cut > place for cut in brokers.all_cuts(queue.broker)):
            continue
        text = f"{queue}: {event.body!r:.60} was acknowledged and is in no queue of the layout in force: {there}"
        found.append(Violation("T1", event.t, text))
    return found
