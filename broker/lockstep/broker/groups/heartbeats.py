"""Bodies of HEART_BEAT: decoded within limits, checked, parsed and cached, so that a repeated one costs almost nothing."""

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b

from lockstep.broker.classic.heartbeat import read_heartbeat
from lockstep.broker.groups.contract import TOPICS_PER_CLIENT_MAX, check_heartbeat, contract_of
from lockstep.broker.groups.tables.subscription_table import estimated_bytes
from lockstep.protocol.bodies import ConsumerGroup, HeartbeatBody
from lockstep.protocol.codec.java import read_json
from lockstep.protocol.codec.plain import unpack_plain
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.names import check_client_id

SESSION_DIGITS = 32
GROUPS_PER_CLIENT_MAX = 256
"""Consumer groups in one HEART_BEAT. RocketMQ's clients have a handful."""
CLIENT_ID_SHOWN = 80
HEARTBEAT_BYTES = 1_000
"""Memory of a cached HEART_BEAT without its texts and its subscriptions."""
REMEMBERED_BYTES_MAX = 64 << 20
"""Memory of all cached HEART_BEATs: 10,000 connections with 8 topics each."""


@dataclass(frozen=True, slots=True, eq=False)
class Heartbeat:
    """A checked body, and the contracts of its groups in the same order."""

    body: HeartbeatBody
    contracts: tuple[ConsumerGroup, ...]

    @classmethod
    def from_body(cls, body: HeartbeatBody) -> "Heartbeat":
        """Check a body. Raise LocalProtocolError, which names the fault, if it is not within the limits."""
        check_client_id(body.client_id)
        if body.session is not None and (len(body.session) != SESSION_DIGITS or body.session.strip("0123456789abcdef")):
            raise LocalProtocolError(f"session of client {body.client_id}: expected {SESSION_DIGITS} lower-case hex digits")
        if len(body.consumers) > GROUPS_PER_CLIENT_MAX:
            raise LocalProtocolError(f"client {body.client_id} names {len(body.consumers)} groups, {GROUPS_PER_CLIENT_MAX} allowed")
        check_heartbeat(body.client_id, body.consumers)
        return cls(body, tuple(map(contract_of, body.consumers)))


class HeartbeatCache:
    """The last HEART_BEATs by a digest of their bytes, up to a limit of memory. The least recently read one is evicted first."""

    def __init__(self, bytes_max: int = REMEMBERED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._known: OrderedDict[bytes, tuple[Heartbeat, int]] = OrderedDict()
        """Digest → the heartbeat, and its estimated memory."""
        self.bytes = 0

    def read(self, raw: bytes, *, native: bool = True) -> Heartbeat:
        """Return the heartbeat; decode, check and parse it if it is not cached. Raises RemoteProtocolError and LocalProtocolError.

        `native`: it comes from a client of lockstep, not from one of RocketMQ.
        """
        digest = blake2b(raw, digest_size=16, person=b"native" if native else b"java").digest()
        known = self._known.get(digest)
        if known is not None:
            self._known.move_to_end(digest)
            return known[0]
        heartbeat = Heartbeat.from_body(heartbeat_body(raw, native=native))
        size = HEARTBEAT_BYTES + len(raw) + 2 * sum([estimated_bytes(each.subscriptions) for each in heartbeat.body.consumers])
        self._known[digest] = heartbeat, size
        self.bytes += size
        while self.bytes > self._bytes_max:
            self.bytes -= self._known.popitem(last=False)[1][1]
        return heartbeat


def heartbeat_body(raw: bytes, *, native: bool = True) -> HeartbeatBody:
    """Decode the body of a HEART_BEAT. Raise RemoteProtocolError or LocalProtocolError.

    The lengths of its lists are checked before their items are decoded.
    """
    plain = unpack_plain(raw, what=HeartbeatBody.__name__) if native else read_json(raw, what=HeartbeatBody.__name__)
    if isinstance(plain, dict):
        groups = plain.get("consumerDataSet")
        entries = groups if isinstance(groups, list) else []
        names = ("subscriptionDataSet",) if native else ("subscriptionDataSet", "subscriptionData")
        lists = [each.get(name) for each in entries if isinstance(each, dict) for name in names]
        topics = sum([len(each) for each in lists if isinstance(each, list)])
        producers = plain.get("producerDataSet")
        for count, limit, what in (
            (topics, TOPICS_PER_CLIENT_MAX, "topics in its subscriptions"),
            (len(entries), GROUPS_PER_CLIENT_MAX, "groups"),
            (len(producers) if isinstance(producers, list) else 0, GROUPS_PER_CLIENT_MAX, "groups of producers"),
        ):
            if count > limit:
                raise LocalProtocolError(f"client {str(plain.get('clientID'))[:CLIENT_ID_SHOWN]} names {count} {what}, {limit} allowed")
    return from_plain(HeartbeatBody, plain) if native else read_heartbeat(plain)
