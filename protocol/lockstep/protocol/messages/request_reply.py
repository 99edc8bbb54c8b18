"""Request–reply: the properties by which a request says who waits for its reply, and a reply which request it answers. RocketMQ: RIP-16,
MessageUtil.

    requester ── request, an ordinary message with CORRELATION_ID, REPLY_TO_CLIENT, TTL, CLUSTER ──▶ broker ──▶ replier
    requester ◀── PUSH_REPLY_MESSAGE_TO_CLIENT (326) ── broker ◀── SEND_REPLY_MESSAGE (324) to <cluster>_REPLY_TOPIC ── replier

The broker stores the request, as any message, and passes the reply on to the connection of the client that REPLY_TO_CLIENT names.
"""

from collections.abc import Mapping

from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.messages.properties import CLUSTER, CORRELATION_ID, KEYS, MSG_TYPE, REPLY_TO_CLIENT, TAGS, TTL, UNIQ_KEY, is_reserved

REPLY_TYPE = "reply"
"""The value of MSG_TYPE in a reply. RocketMQ: MixAll.REPLY_MESSAGE_FLAG."""
TTL_MS_MAX = (1 << 63) - 1
"""RocketMQ reads it as a long."""


def request_properties(correlation_id: str, client_id: str, ttl_ms: int, cluster: str | None) -> dict[str, str]:
    """Return what makes a message a request.

    `ttl_ms` is how long the requester waits. Repliers of RocketMQ need the name of the `cluster`, because they send to its reply topic.
    """
    properties = {CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: client_id, TTL: str(ttl_ms)}
    return properties if cluster is None else {**properties, CLUSTER: cluster}


def reply_properties(request: Mapping[str, str], reply_id: str) -> dict[str, str]:
    """Return what makes a message the reply to a request with these properties.

    Raise LocalProtocolError if it is no request.
    """
    for name in (CORRELATION_ID, REPLY_TO_CLIENT, CLUSTER):
        if name not in request:
            raise LocalProtocolError(f"the message is no request: it has no property {name}, so nobody waits for a reply")
    kept = {name: request[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if name in request}
    return {**kept, MSG_TYPE: REPLY_TYPE, UNIQ_KEY: reply_id}


def ttl_ms(properties: Mapping[str, str]) -> int | None:
    """Return how long the requester waits, or None if the message is no request."""
    ttl = properties.get(TTL, "") if CORRELATION_ID in properties else ""
    return min(int(ttl), TTL_MS_MAX) if ttl.isascii() and ttl.isdecimal() and len(ttl) <= 19 else None


def user_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return those that a user has set: all but the reserved ones, of which TAGS and KEYS are set by users too."""
    return {name: value for name, value in properties.items() if name in (TAGS, KEYS) or not is_reserved(name)}
