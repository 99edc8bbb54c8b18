"""The fake broker's server: records each request, keeps those of `mute` codes until `process_kept_requests`, and stores messages."""

from dataclasses import dataclass, field
from typing import Any

from lockstep.protocol.bodies import ChangeSettings, CreateTopicReply, HeartbeatBody, SessionLockBody, SyncBody
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError, NotLeaderError, RequestCodeNotSupportedError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.clients import DeleteGroupHeader, GroupHeader, GroupStatusHeader, UnregisterClientHeader
from lockstep.protocol.headers.offsets import TopicHeader, ViewMessageHeader
from lockstep.protocol.headers.pull import PullHeader
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.headers.send import SendRecordsHeader
from lockstep.protocol.messages.message import Message, encode_message
from lockstep.protocol.messages.record import PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT, STORE_HOST_AT, STORE_TIMESTAMP_AT, pack_host
from lockstep.protocol.responses import error_fields
from lockstep.protocol.topics.layouts import is_higher
from lockstep.protocol.topics.queue import TopicLayout
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.server import Server
from lockstep.runtime.host import Host

ANY_GROUP = "*"
GRACE_MS = 3_000
STORED_MS = 1_700_000_000_000
STORE_HOST = "10.9.8.7:10911"
"""The store host of records: an unreachable address."""
BODIES: dict[int, type] = {
    RequestCode.HEART_BEAT: HeartbeatBody,
    RequestCode.LOCK_BATCH_MQ: SessionLockBody,
    RequestCode.SYNC: SyncBody,
    RequestCode.UPDATE_BROKER_CONFIG: ChangeSettings,
}
HEADERS: dict[int, type] = {
    RequestCode.SEND_RECORDS: SendRecordsHeader,
    RequestCode.PULL_MESSAGE: PullHeader,
    RequestCode.UNREGISTER_CLIENT: UnregisterClientHeader,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: GroupHeader,
    RequestCode.UPDATE_AND_CREATE_TOPIC: CreateTopicHeader,
    RequestCode.GROUP_STATUS: GroupStatusHeader,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: DeleteGroupHeader,
    RequestCode.TOPIC_OFFSETS: TopicHeader,
    RequestCode.VIEW_MESSAGE_BY_ID: ViewMessageHeader,
}


@dataclass(frozen=True)
class Received:
    """A request as it arrived. `body` is its decoded header or body."""

    code: int
    body: Any
    at_ms: int
    connection: int


def stored(message: Message, queue_id: int, queue_offset: int, physical_offset: int, *, store_host: str = STORE_HOST) -> bytes:
    """Return a record as a broker stores it."""
    record = bytearray(encode_message(message, queue_id, f"{physical_offset:032X}", STORED_MS - 5))
    record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = queue_offset.to_bytes(8, "big")
    record[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8] = physical_offset.to_bytes(8, "big")
    record[STORE_TIMESTAMP_AT : STORE_TIMESTAMP_AT + 8] = STORED_MS.to_bytes(8, "big")
    record[STORE_HOST_AT : STORE_HOST_AT + 8] = pack_host(store_host)
    return bytes(record)


@dataclass
class Wire:
    """The base of the fake broker, which every request passes. The other parts override `response` for their request codes."""

    name: str
    host: Host = field(default_factory=Host.real)
    term: int = 1
    grace_ms: int = GRACE_MS
    auto_create: bool = False
    """Whether the first send creates a missing topic."""
    not_leader: set[int] = field(default_factory=set)
    """Codes of requests that are answered NOT_LEADER."""
    leader: "Wire | None" = None
    """The broker that those responses name."""
    replicas: tuple[str, ...] = ()
    """The addresses of the other copies, in routes."""
    registered: bool = True
    """Whether the nameserver has a current registration."""
    layouts: dict[str, TopicLayout] = field(default_factory=dict)
    refuse: dict[str, BrokerError] = field(default_factory=dict)
    """The error for heartbeats that name this group, or any (ANY_GROUP)."""
    refusal: BrokerError | None = None
    """The error for changes of topics and deletions of groups."""
    created: list[TopicLayout] = field(default_factory=list)
    requests: list[Received] = field(default_factory=list)
    mute: set[int] = field(default_factory=set)
    """Codes of requests that are kept without a response. -SYNC means empty SYNCs, which SYNC excludes."""
    kept: list[tuple[Command, Endpoint]] = field(default_factory=list)
    journal: list[str] | None = None
    """Shared by several brokers: "broker CODE" for each request, in order."""
    records: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    """(topic, queue id) → records."""
    bodies: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    """(topic, queue id) → bodies of the records."""
    server: Server | None = None
    address: str = ""

    async def start(self, port: int = 0) -> None:
        self.server = Server(self.host, {"internal": ("127.0.0.1", port)}, self.handle)
        await self.server.start()
        self.address = self.server.addresses["internal"]

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.close()
            self.server = None

    # ------------------------------------------------------------------------------------------------------------ for the test

    @property
    def endpoints(self) -> list[Endpoint]:
        assert self.server is not None
        return list(self.server.endpoints.values())

    @property
    def heartbeats(self) -> list[HeartbeatBody]:
        return self.received(RequestCode.HEART_BEAT)

    def received(self, code: int) -> list[Any]:
        """Return the decoded requests of one code, in order."""
        return [each.body for each in self.requests if each.code == code]

    def cut(self) -> None:
        for endpoint in self.endpoints:
            endpoint.abort("cut by the test")

    def stop_reading(self) -> None:
        for endpoint in self.endpoints:
            assert endpoint._transport is not None
            endpoint._transport.pause_reading()

    def go_on_reading(self) -> None:
        for endpoint in self.endpoints:
            assert endpoint._transport is not None
            endpoint._transport.resume_reading()

    def process_kept_requests(self) -> None:
        self.mute.clear()
        kept, self.kept = self.kept, []
        for command, endpoint in kept:
            self._respond(command, endpoint, self._decode(command))

    def adopt(self, layout: TopicLayout) -> None:
        """Keep the higher of this layout and the present one."""
        here = self.layouts.get(layout.topic)
        if here is None or is_higher(layout, here):
            self.layouts[layout.topic] = layout

    @property
    def stored(self) -> list[bytes]:
        """The bodies of all queues, queue by queue."""
        return [body for queue in sorted(self.bodies) for body in self.bodies[queue]]

    def append(self, topic: str, queue_id: int, record: bytes, body: bytes) -> int:
        """Store a record at the end of a queue; return its queue offset."""
        records = self.records.setdefault((topic, queue_id), [])
        offset = len(records)
        records.append(record[:QUEUE_OFFSET_AT] + offset.to_bytes(8, "big") + record[QUEUE_OFFSET_AT + 8 :])
        self.bodies.setdefault((topic, queue_id), []).append(body)
        return offset

    # --------------------------------------------------------------------------------------------------------------- serving

    def changed(self) -> None:
        """A layout was created or changed."""

    def handle(self, command: Command, endpoint: Endpoint) -> None:
        if self.journal is not None:
            self.journal.append(f"{self.name} {RequestCode(command.code).name}")
        body = self._decode(command)
        self.requests.append(Received(command.code, body, self.host.clock.boot_ms(), endpoint.id))
        code = -command.code if command.code == RequestCode.SYNC and not body.items else command.code
        if code in self.mute:
            self.kept.append((command, endpoint))
        else:
            self._respond(command, endpoint, body)

    def _decode(self, command: Command) -> Any:
        if command.code in BODIES:
            return decode_body(BODIES[command.code], command.body)
        return from_plain(HEADERS[command.code], command.fields) if command.code in HEADERS else None

    def _respond(self, command: Command, endpoint: Endpoint, body: Any) -> None:
        try:
            if command.code in self.not_leader:
                address, term = (None, None) if self.leader is None else (self.leader.address, self.leader.term)
                raise NotLeaderError("this is a replica", address=address, term=term)
            self.response(command, endpoint, body)
        except BrokerError as error:
            endpoint.send(command.reply(error.code, error.remark, error_fields(error)))

    def response(self, command: Command, endpoint: Endpoint, body: Any) -> None:
        """Respond to a request, now or later, or raise the error to respond with."""
        if command.code != RequestCode.UPDATE_AND_CREATE_TOPIC:
            raise RequestCodeNotSupportedError(f"the fake broker does not support request code {command.code}")
        self._create(command, endpoint, body)

    def _create(self, command: Command, endpoint: Endpoint, header: CreateTopicHeader) -> None:
        if self.refusal is not None:
            raise self.refusal
        layout = decode_body(TopicLayout, command.body)
        if header.auto and not self.auto_create and header.topic not in self.layouts:
            endpoint.send(command.reply(ResponseCode.TOPIC_NOT_EXIST, f"topic {header.topic} does not exist: create it"))
            return
        self.created.append(layout)
        here = self.layouts.get(layout.topic)
        if here is None or here.version.counter < layout.version.counter:
            self.layouts[layout.topic] = layout
        self.changed()
        endpoint.send(command.reply(body=encode_body(CreateTopicReply(self.layouts[header.topic]))))
