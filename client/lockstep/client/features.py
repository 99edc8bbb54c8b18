"""The features that a broker lists in its response to HEART_BEAT. A client that needs a missing one raises and does not start (wire.md)."""

from collections.abc import Sequence

from lockstep.client.instance import Instance
from lockstep.protocol.bodies import HeartbeatReply
from lockstep.protocol.errors import RequestCodeNotSupportedError
from lockstep.protocol.queue import TopicLayout

CONSUMING_IN_ORDER = ("ordered", "sync")
CONSUMING_WITH_DEAD_LETTERS = (*CONSUMING_IN_ORDER, "dead_letters")
CONSUMING_BY_KEY = ("done_ranges",)
PARKING = ("park",)
CONSUMING_BROADCAST = ("sync",)
CONSUMING_CONCURRENTLY = ("concurrent", "sync")
FILTERING_BY_SQL = ("sql92",)
DELAYING = ("delays",)
SENDING_DURABLY = ("durable_sends",)
SENDING = ("records", "sequences", "layouts")


def check_features(reply: HeartbeatReply, needed: Sequence[str]) -> None:
    """Raise RequestCodeNotSupportedError if the broker lacks any of `needed`."""
    absent = [feature for feature in needed if feature not in reply.features]
    if absent:
        has = ", ".join(reply.features) or "none"
        raise RequestCodeNotSupportedError(f"broker {reply.broker_name} lacks {', '.join(absent)} (it has: {has}); use a newer broker")


def check_brokers(instance: Instance, layout: TopicLayout, needed: Sequence[str]) -> None:
    """Raise RequestCodeNotSupportedError if a connected broker of the topic lacks any of `needed`."""
    for entry in layout.entries:
        link = instance.link(entry.broker_name)
        if link is not None and link.up and link.last_reply is not None:
            check_features(link.last_reply, needed)
