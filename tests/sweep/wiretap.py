"""Reads along on every connection to a broker and writes what passes into the history: what was asked, what was answered, what arrived.

Each way of a connection is decoded once, when it is written. A frame counts as answered when the broker wrote it, as received when its last
byte was handed to the other end. Bodies are decoded only where an event needs them; connections to nameservers are not read at all.
"""

from collections.abc import Callable, Mapping

from lockstep.protocol.bodies import LockVerdict
from lockstep.protocol.codec.plain import unpack_plain
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RemoteProtocolError
from sweep.compressed import bodies_of, plain
from sweep.copy_tap import CopyTap
from sweep.events import (
    CommitAnswered,
    CommitReceived,
    CommitSent,
    ConnectionCut,
    FrameAnswered,
    FrameWritten,
    GrantAnswered,
    GrantReceived,
    LeaveSent,
    LockRefused,
    LockSent,
    ProofReceived,
    PullReceived,
    QueueFreeSent,
    SessionBound,
    StaleReceived,
)
from sweep.hand_tap import HandTap
from sweep.history import Answer, Event, History, QueueKey, Reached
from sweep.wire_lines import Asked, Commit, Line, Peer

_ANSWERS = {
    LockVerdict.OK: Answer.OK,
    LockVerdict.STALE: Answer.STALE,
    LockVerdict.NOT_YOURS: Answer.NOT_YOURS,
    LockVerdict.HELD: Answer.HELD,
    LockVerdict.REFUSED: Answer.REFUSED,
    LockVerdict.WAIT: Answer.WAIT,
}
_PULL_CODES = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
_SENDS = (RequestCode.SEND_RECORDS, RequestCode.SEND_MESSAGE)
_RARE = {int(code): code.name for code in ResponseCode if code >= ResponseCode.STALE_EPOCH}


class Wiretap:
    """The network's tap. `brokers`: machine name → broker name; `now`: the global virtual time in seconds."""

    def __init__(self, history: History, now: Callable[[], float], brokers: Mapping[str, str]) -> None:
        self._history = history
        self._now = now
        self._brokers = brokers
        self._lines: dict[int, Line] = {}
        self._groups: dict[tuple[str, str], list[str]] = {}
        """(session, broker) → the groups that its last HEART_BEAT named."""
        self._requests = 0
        self._copies = CopyTap(history, self._ask)
        self._hands = HandTap(history, self._ask)
        self._requested: dict[int, Callable[[Line, Command, float], None]] = {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.SYNC: self._sync,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.SEND_RECORDS: self._send_records,
            RequestCode.SEND_MESSAGE: self._send_message,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            **self._copies.requested,
            **self._hands.requested,
        }
        self._answered: dict[int, Callable[[Line, Asked, Command, float, list[Event]], str]] = {
            RequestCode.LOCK_BATCH_MQ: self._lock_answered,
            RequestCode.SYNC: self._sync_answered,
            RequestCode.PULL_MESSAGE: self._pull_answered,
            RequestCode.SEND_RECORDS: self._send_answered,
            RequestCode.SEND_MESSAGE: self._send_answered,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_answered,
            **self._copies.answered,
            **self._hands.answered,
        }

    # ----------------------------------------------------------------------------------------------------------------- tap

    def opened(self, connection: int, client: Peer, server: Peer, port: int) -> None:
        broker = self._brokers.get(server.machine.name)
        if broker is not None:
            self._lines[connection] = Line(connection, client, server, broker)

    def sent(self, connection: int, upstream: bool, data: bytes) -> None:
        line = self._lines.get(connection)
        if line is None:
            return
        way = line.up if upstream else line.down
        way.written += len(data)
        if way.dead:
            return
        way.buffer.feed(data)
        read = self._request if upstream else self._from_broker
        try:
            while (command := way.buffer.next()) is not None:
                read(line, command)
        except RemoteProtocolError as error:
            way.dead = True
            facts = f"{line.client.machine.name} {'→' if upstream else '←'} {line.broker}: {error}"
            self._history.append(Reached(self._now(), "", 0, "unreadable bytes sent", facts))

    def delivered(self, connection: int, upstream: bool, count: int) -> None:
        line = self._lines.get(connection)
        if line is None or upstream:
            return
        way = line.down
        way.arrived += count
        waiting = way.waiting
        while waiting and waiting[0][0] <= way.arrived:
            for event in waiting.popleft()[2]:
                self._history.append(_at(event, self._now()))

    def cut(self, connection: int) -> None:
        line = self._lines.pop(connection, None)
        if line is None:
            return
        now = self._now()
        self._history.append(ConnectionCut(now, *_place(line.client), line.broker, connection, line.session))
        for _, name, events in line.down.waiting:
            if name:
                facts = f"{line.broker} → {line.client.machine.name}: {events[0] if events else ''}"
                self._history.append(Reached(now, *_place(line.server), f"answer of {name} lost", facts))

    # ------------------------------------------------------------------------------------------------------------- requests

    def _request(self, line: Line, command: Command) -> None:
        read = self._requested.get(command.code)
        if read is None or command.is_response:
            return
        try:
            read(line, command, self._now())
        except (RemoteProtocolError, KeyError, TypeError, AttributeError) as error:
            facts = f"code {command.code} to {line.broker}: {error!r}"
            self._history.append(Reached(self._now(), *_place(line.client), "unreadable request", facts))

    def _ask(self, line: Line, command: Command, now: float) -> Asked:
        self._requests += 1
        asked = Asked(command.code, now, line.client.host.clock.boot_ms(), self._requests)
        if not command.is_oneway:
            line.asked[command.opaque] = asked
        return asked

    def _heartbeat(self, line: Line, command: Command, now: float) -> None:
        body = unpack_plain(command.body)
        session = body.get("session")
        if session is not None:
            line.session = session
            line.pending_bind[command.opaque] = (session, body["clientID"], body.get("connection", 0))
            groups = [consumer["groupName"] for consumer in body.get("consumerDataSet", ())]
            for group in self._groups.get((session, line.broker), ()):
                if group not in groups:
                    self._history.append(LeaveSent(now, *_place(line.client), group, line.broker, session))
            self._groups[session, line.broker] = groups

    def _lock(self, line: Line, command: Command, now: float) -> None:
        body = unpack_plain(command.body)
        if "items" not in body:
            self._hands.classic_lock(line, command, now)
            return
        asked = self._ask(line, command, now)
        where = _place(line.client)
        for item in body["items"]:
            key = QueueKey(item["group"], line.broker, item["topic"], item["queueId"])
            epoch, offset = item.get("epoch"), item.get("offset")
            asked.keys.append((key, epoch))
            commit = None if epoch is None or offset is None else Commit(key, epoch, None, offset, item.get("attempts", 0), False)
            asked.commits.append(commit)
        self._history.append(LockSent(now, *where, line.broker, line.session, tuple(asked.keys)))
        self._commits_sent(line, asked, "LOCK")

    def _sync(self, line: Line, command: Command, now: float) -> None:
        asked = self._ask(line, command, now)
        for item in unpack_plain(command.body).get("items", ()):
            key = QueueKey(item["group"], line.broker, item["topic"], item["queueId"])
            epoch, generation, offset = item.get("epoch"), item.get("generation"), item.get("offset")
            asked.commits.append(Commit(key, epoch, generation, offset, item.get("attempts", 0), item.get("release", False)))
        self._commits_sent(line, asked, "SYNC")

    def _update_offset(self, line: Line, command: Command, now: float) -> None:
        fields = command.fields
        asked = self._ask(line, command, now)
        key = QueueKey(fields["consumerGroup"], line.broker, fields["topic"], fields["queueId"])
        asked.commits.append(Commit(key, None, None, fields["commitOffset"], 0, False))
        self._commits_sent(line, asked, "UPDATE")

    def _commits_sent(self, line: Line, asked: Asked, by: str) -> None:
        where = _place(line.client)
        for item in asked.commits:
            if item is not None:
                i, session = item, line.session
                self._history.append(
                    CommitSent(asked.t, *where, i.key, i.epoch, i.generation, i.offset, i.attempts, i.released, by, session, asked.boot_ms)
                )

    def _pull(self, line: Line, command: Command, now: float) -> None:
        fields = command.fields
        asked = self._ask(line, command, now)
        key = QueueKey(fields["consumerGroup"], line.broker, fields["topic"], fields["queueId"])
        asked.keys.append((key, fields.get("epoch")))
        asked.facts = (fields["queueOffset"],)

    def _send_records(self, line: Line, command: Command, now: float) -> None:
        fields = command.fields
        asked = self._ask(line, command, now)
        key = QueueKey("", line.broker, fields["topic"], fields["queueId"])
        bodies, compressed = _bodies(command.body)
        counter, writer = fields.get("layoutCounter"), fields.get("layoutWriter")
        layout = None if counter is None or writer is None else (counter, writer)
        sequence = (fields.get("partition", 0), fields.get("producerEpoch", 0), fields.get("firstSequence", 0))
        asked.keys.append((key, None))
        asked.facts = (len(bodies),)
        where = _place(line.client)
        producer, durable = fields.get("producerId"), fields.get("durable")
        self._history.append(FrameWritten(now, *where, key, bodies, layout, producer, sequence, asked.request, durable))
        if compressed:
            self._history.append(Reached(now, *where, "compressed bodies sent", f"{compressed} of {len(bodies)}"))

    def _send_message(self, line: Line, command: Command, now: float) -> None:
        if self._copies.delayed(line, command, now):
            return
        fields = command.fields
        asked = self._ask(line, command, now)
        key = QueueKey("", line.broker, fields["topic"], fields["queueId"])
        asked.keys.append((key, None))
        asked.facts = (1,)
        body = (plain(bytes(command.body), fields.get("sysFlag", 0)),)
        self._history.append(FrameWritten(now, *_place(line.client), key, body, None, None, (0, 0, 0), asked.request))

    def _unregister(self, line: Line, command: Command, now: float) -> None:
        group = command.fields.get("consumerGroup")
        if group:
            self._history.append(LeaveSent(now, *_place(line.client), group, line.broker, line.session))

    # -------------------------------------------------------------------------------------------------------------- answers

    def _from_broker(self, line: Line, command: Command) -> None:
        now = self._now()
        if not command.is_response:
            if command.code == RequestCode.QUEUE_FREE:
                self._queue_free(line, command, now)
            return
        rare = _RARE.get(command.code)
        if rare is not None:
            self._history.append(Reached(now, *_place(line.server), f"{rare} answered", command.remark or ""))
        received: list[Event] = []
        name = ""
        bind = line.pending_bind.pop(command.opaque, None) if line.pending_bind else None
        if bind is not None:
            if command.code == ResponseCode.SUCCESS:
                session, client_id, number = bind
                received.append(SessionBound(now, *_place(line.client), line.broker, session, client_id, line.connection, number))
        else:
            asked = line.asked.pop(command.opaque, None)
            if asked is not None:
                name = self._answered[asked.code](line, asked, command, now, received)
        if received or name:
            way = line.down
            way.waiting.append((way.written - way.buffer.pending_bytes, name, received))

    def _queue_free(self, line: Line, command: Command, now: float) -> None:
        for item in unpack_plain(command.body)["queues"]:
            key = QueueKey(item["group"], line.broker, item["topic"], item["queueId"])
            self._history.append(QueueFreeSent(now, *_place(line.server), key, line.session, line.client.number))

    def _lock_answered(self, line: Line, asked: Asked, command: Command, now: float, received: list[Event]) -> str:
        if command.code != ResponseCode.SUCCESS:
            return "LOCK"
        body = unpack_plain(command.body)
        grace_ms = body["disconnectGraceMs"]
        here, there = _place(line.server), _place(line.client)
        received.append(ProofReceived(now, *there, line.broker, line.session, line.connection, asked.boot_ms, asked.t, True, grace_ms))
        granted = False
        for (key, epoch), commit, item in zip(asked.keys, asked.commits, body["items"], strict=True):
            answer = _ANSWERS[item["verdict"]]
            if commit is not None:
                self._commit_answered(line, asked, commit, answer, "LOCK", now, received)
            if answer is Answer.OK:
                given, offset, generation, attempts = item["epoch"], item["offset"], item["generation"], item.get("attempts", 0)
                session, client, renewal = line.session, line.client.number, epoch is not None
                granted = granted or not renewal
                self._history.append(
                    GrantAnswered(now, *here, key, given, offset, generation, attempts, session, client, renewal, grace_ms, asked.t)
                )
                received.append(GrantReceived(now, *there, key, given, offset, generation, attempts, session, renewal, grace_ms))
                continue
            self._history.append(LockRefused(now, *here, key, epoch, answer, line.session, line.client.number))
            self._history.append(Reached(now, *here, f"LOCK answered {answer.value}", str(key)))
            if epoch is not None:
                received.append(StaleReceived(now, *there, key, epoch, "LOCK", line.session))
        return "LOCK with a grant" if granted else "LOCK"

    def _sync_answered(self, line: Line, asked: Asked, command: Command, now: float, received: list[Event]) -> str:
        if command.code != ResponseCode.SUCCESS:
            return ""
        there = _place(line.client)
        received.append(ProofReceived(now, *there, line.broker, line.session, line.connection, asked.boot_ms, asked.t, False))
        if not asked.commits:
            return ""
        for commit, item in zip(asked.commits, unpack_plain(command.body)["items"], strict=True):
            answer = _ANSWERS[item["verdict"]]
            assert commit is not None
            self._commit_answered(line, asked, commit, answer, "SYNC", now, received)
            if answer is Answer.OK:
                continue
            self._history.append(Reached(now, *_place(line.server), f"SYNC answered {answer.value}", str(commit.key)))
            # What the client takes for the end of the epoch: anything but OK, and of a release only STALE.
            if commit.epoch is not None and (answer is Answer.STALE or not commit.released):
                received.append(StaleReceived(now, *there, commit.key, commit.epoch, "SYNC", line.session))
        return "SYNC"

    def _update_answered(self, line: Line, asked: Asked, command: Command, now: float, received: list[Event]) -> str:
        (commit,) = asked.commits
        assert commit is not None
        answer = Answer.OK if command.code == ResponseCode.SUCCESS else Answer.REFUSED
        self._commit_answered(line, asked, commit, answer, "UPDATE", now, received)
        return ""

    def _commit_answered(self, line: Line, asked: Asked, item: Commit, answer: Answer, by: str, now: float, received: list[Event]) -> None:
        i, session, client = item, line.session, line.client.number
        here, there = _place(line.server), _place(line.client)
        self._history.append(
            CommitAnswered(now, *here, i.key, i.epoch, i.generation, i.offset, i.attempts, i.released, by, session, client, answer, asked.t)
        )
        received.append(
            CommitReceived(now, *there, i.key, i.epoch, i.generation, i.offset, i.attempts, i.released, by, session, answer, asked.t)
        )

    def _pull_answered(self, line: Line, asked: Asked, command: Command, now: float, received: list[Event]) -> str:
        ((key, epoch),) = asked.keys
        (offset,) = asked.facts
        there = _place(line.client)
        fields = command.fields
        first, end = fields.get("gapFirst"), fields.get("gapEnd")
        gap = None if first is None or end is None else (first, end)
        next_offset = fields.get("nextBeginOffset") if command.code in _PULL_CODES else None
        received.append(PullReceived(now, *there, key, epoch, command.code, offset, next_offset, asked.t, gap, now))
        if command.code == ResponseCode.STALE_EPOCH and epoch is not None:
            received.append(StaleReceived(now, *there, key, epoch, "PULL", line.session))
        return ""

    def _send_answered(self, line: Line, asked: Asked, command: Command, now: float, received: list[Event]) -> str:
        ((key, _),) = asked.keys
        (count,) = asked.facts
        fields = command.fields
        if asked.code == RequestCode.SEND_MESSAGE and "queueId" in fields:
            key = key._replace(queue=fields["queueId"])
        stored = command.code == ResponseCode.SUCCESS
        offset, position = (fields.get("queueOffset", -1), fields.get("physicalOffset", -1)) if stored else (-1, -1)
        where = _place(line.server)
        self._history.append(FrameAnswered(now, *where, key, command.code, offset, position, count, asked.request, asked.t))
        return "a send" if stored else ""


def _place(peer: Peer) -> tuple[str, int]:
    return peer.machine.name, peer.number


def _at(event: Event, t: float) -> Event:
    """The event at the time at which it came true. It is the tap's own until it is in the history."""
    object.__setattr__(event, "t", t)
    return event


def _bodies(data: bytes | bytearray | memoryview) -> tuple[tuple[bytes, ...], int]:
    """The bodies of a frame's records as they were sent, and how many are compressed; none where it is no frame."""
    try:
        return bodies_of(data)
    except RemoteProtocolError:
        return (), 0
