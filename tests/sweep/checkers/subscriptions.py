"""O5: a listener gets only messages that its member's own subscription matches, whatever the contracts of the other members."""

from sweep.checkers.messages import tags_of
from sweep.checkers.violation import Violation, process_name
from sweep.events.consumers import CallBegan, ConsumerStarted
from sweep.events.producers import SendBegan
from sweep.history import History


def check(history: History) -> list[Violation]:
    sent = {event.body: event for event in history.of(SendBegan)}
    wanted: dict[tuple[int, str, str], set[str]] = {}
    """(process, group, topic) → tags; empty: everything is wanted."""
    found = []
    for event in history:
        if isinstance(event, ConsumerStarted):
            for topic, expression in event.expressions:
                wanted[event.process, event.group, topic] = tags_of(expression)
        elif isinstance(event, CallBegan):
            tags = wanted.get((event.process, event.queue.group, event.queue.topic))
            for offset, body in event.messages:
                send = sent.get(body)
                if tags and send is not None and send.tags not in tags:
                    text = f"call {event.call} of {event.queue} in {process_name(event)} got offset {offset} with tag {send.tags}"
                    found.append(Violation("O5", event.t, f"{text}: it subscribes to {' || '.join(sorted(tags))}"))
    return found
