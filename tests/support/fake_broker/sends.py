"""The fake broker's sends: stores frames as the brokers' table of sequences decides; `script` responds to the next SEND_RECORDS instead."""

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lockstep.broker.processors.send import NOT_STORED
from lockstep.broker.tables.sequence_table import ACCEPT, Scope, SequenceTable, StoredFrame
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.send import SendRecordsHeader, SendRecordsReply
from lockstep.protocol.messages.message import MessageExt, decode_messages
from lockstep.protocol.messages.record import split_records
from lockstep.protocol.messages.sequence import FrameSequence
from lockstep.protocol.topics.queue import LayoutVersion
from lockstep.runtime.connections.endpoint import Endpoint
from support.fake_broker.wire import Wire


@dataclass
class Sent:
    """A SEND_RECORDS request as it arrived."""

    header: SendRecordsHeader
    messages: list[MessageExt]
    body: bytes
    endpoint: Endpoint
    command: Command

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def place(self) -> tuple[int, int]:
        return self.header.producer_epoch, self.header.first_sequence


Step = Callable[["Sends", Sent], None]


def store_without_response(broker: "Sends", sent: Sent) -> None:
    """Store, and never respond."""
    broker.store_frame(sent)


def ignore(broker: "Sends", sent: Sent) -> None:
    """Ignore the request."""


def take(broker: "Sends", sent: Sent) -> None:
    """Store and respond."""
    broker.take(sent)


def respond_later(held: list[Callable[[], None]], then: Step = take) -> Step:
    """Take the step `then` when the function that is added to `held` is called."""

    def step(broker: "Sends", sent: Sent) -> None:
        held.append(lambda: then(broker, sent))

    return step


def store_and_disconnect(broker: "Sends", sent: Sent) -> None:
    broker.store_frame(sent)
    sent.endpoint.abort("scripted")


def abort_connection(broker: "Sends", sent: Sent) -> None:
    sent.endpoint.abort("scripted")


def refuse(error: BrokerError, *, next_sequence: int | None = None) -> Step:
    """Respond with the error, and store nothing."""

    def step(broker: "Sends", sent: Sent) -> None:
        reply = SendRecordsReply(-1, -1, 0, next_sequence=next_sequence)
        sent.endpoint.send(sent.command.reply(error.code, error.remark, to_plain(reply)))

    return step


def sequence_of(header: SendRecordsHeader) -> tuple[Scope, FrameSequence]:
    """Return what the brokers' table of sequences takes."""
    assert header.producer_id is not None
    place = header.partition, header.producer_epoch, header.first_sequence, header.count
    frame = FrameSequence(header.producer_id, *place, header.first, header.crc, bool(header.given))
    return Scope(header.producer_id, header.partition, header.topic, header.queue_id), frame


@dataclass
class Sends(Wire):
    """Responds to SEND_RECORDS."""

    sends: list[Sent] = field(default_factory=list)
    oneways: list[Sent] = field(default_factory=list)
    script: deque[Step] = field(default_factory=deque)
    otherwise: Step = take
    """The step for a frame that the script has none for."""
    sequences: SequenceTable = field(default_factory=SequenceTable)

    def response(self, command: Command, endpoint: Endpoint, body: Any) -> None:
        if command.code != RequestCode.SEND_RECORDS:
            super().response(command, endpoint, body)
            return
        sent = Sent(body, decode_messages(bytes(command.body), self.name), bytes(command.body), endpoint, command)
        assert len(sent.messages) == sent.header.count
        if command.is_oneway:
            self.oneways.append(sent)
            return
        self.sends.append(sent)
        step = self.script.popleft() if self.script else self.otherwise
        step(self, sent)

    def take_over(self, other: "Sends") -> None:
        """Take the messages and sequences of another broker."""
        self.sequences = copy.deepcopy(other.sequences)
        self.records, self.bodies = copy.deepcopy(other.records), copy.deepcopy(other.bodies)

    def erase_all(self) -> None:
        """Forget every message and sequence, as if the disk had been wiped."""
        self.sequences = SequenceTable()
        self.records.clear()
        self.bodies.clear()

    def take(self, sent: Sent) -> None:
        """Store the frame unless it is stored, and respond."""
        code, reply = self.store_frame(sent)
        sent.endpoint.send(sent.command.reply(code, None, to_plain(reply)))

    def store_frame(self, sent: Sent) -> tuple[ResponseCode, SendRecordsReply]:
        header = sent.header
        scope, frame = sequence_of(header)
        verdict = self.sequences.check_frame(scope, frame, now_ms=1)
        stored = verdict.stored or NOT_STORED
        if verdict is ACCEPT:
            layout, (counter, writer) = self.layouts.get(header.topic), (header.layout_counter, header.layout_writer)
            if layout is not None and counter is not None and writer is not None and LayoutVersion(counter, writer) < layout.version:
                return ResponseCode.LAYOUT_STALE, SendRecordsReply(*NOT_STORED)
            first = len(self.records.get((header.topic, header.queue_id), []))
            stored = StoredFrame(first, 1_000_000 * (header.queue_id + 1) + first, 1)
            for (start, end), body in zip(split_records(sent.body), sent.bodies, strict=True):
                self.append(header.topic, header.queue_id, sent.body[start:end], body)
            self.sequences.record_frame(scope, frame, stored)
        return verdict.code, SendRecordsReply(*stored, "127.0.0.1:10911", next_sequence=verdict.next)
