"""Records the traffic of every connection to a broker: requests, responses, and when each response arrived.

Each direction of a connection is decoded once, when it is written. A response counts as sent when the broker wrote it, and as received
when its last byte was passed to the other end. wire_readers.py turns frames into events; connections to nameservers are not read.
"""

from collections.abc import Callable, Mapping

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RemoteProtocolError
from sweep.connections import Link, Peer, Pending
from sweep.history import Event, History, PlaceReached
from sweep.wire_readers import PUSHES, REQUESTS, RESPONSES, Frame

_RARE = {int(code): code.name for code in ResponseCode if code >= ResponseCode.STALE_EPOCH}


class WireRecorder:
    """Observes a network. `brokers`: machine name → broker name; `now`: the global virtual time in seconds."""

    def __init__(self, history: History, now: Callable[[], float], brokers: Mapping[str, str]) -> None:
        self._history = history
        self._now = now
        self._brokers = brokers
        self._links: dict[int, Link] = {}
        self._groups: dict[tuple[str, str], list[str]] = {}
        """(session, broker) → the groups that its last HEART_BEAT named."""
        self._requests = 0

    # ---------------------------------------------------------------------------------------------------------- the network

    def opened(self, connection: int, client: Peer, server: Peer, port: int) -> None:
        broker = self._brokers.get(server.machine.name)
        if broker is not None:
            self._links[connection] = Link(connection, client, server, broker)

    def sent(self, connection: int, upstream: bool, data: bytes) -> None:
        link = self._links.get(connection)
        if link is None:
            return
        direction = link.up if upstream else link.down
        direction.written += len(data)
        if direction.unreadable:
            return
        direction.buffer.feed(data)
        read = self._request if upstream else self._from_broker
        try:
            while (command := direction.buffer.next()) is not None:
                read(link, command)
        except RemoteProtocolError as error:
            direction.unreadable = True
            facts = f"{link.client.machine.name} {'→' if upstream else '←'} {link.broker}: {error}"
            self._history.append(PlaceReached(self._now(), "", 0, "unreadable bytes sent", facts))

    def delivered(self, connection: int, upstream: bool, count: int) -> None:
        link = self._links.get(connection)
        if link is None or upstream:
            return
        down = link.down
        down.arrived += count
        while down.waiting and down.waiting[0][0] <= down.arrived:
            for event in down.waiting.popleft()[2]:
                object.__setattr__(event, "t", self._now())  # it is not in the history yet
                self._history.append(event)

    def cut(self, connection: int) -> None:
        link = self._links.pop(connection, None)
        if link is None:
            return
        now = self._now()
        frame = Frame(link, Command(0, 0), now, self._groups)
        self._history.append(frame.connection_cut())
        for _, name, events in link.down.waiting:
            if name:
                facts = f"{link.broker} → {link.client.machine.name}: {events[0] if events else ''}"
                self._history.append(PlaceReached(*frame.server, f"response to {name} lost", facts))

    # --------------------------------------------------------------------------------------------------------------- frames

    def _request(self, link: Link, command: Command) -> None:
        read = REQUESTS.get(command.code)
        if read is None or command.is_response:
            return
        frame = Frame(link, command, self._now(), self._groups)
        try:
            for event in read(frame, lambda: self._pend(link, command)):
                self._history.append(event)
        except (RemoteProtocolError, KeyError, TypeError, AttributeError) as error:
            facts = f"code {command.code} to {link.broker}: {error!r}"
            self._history.append(PlaceReached(*frame.client, "unreadable request", facts))

    def _pend(self, link: Link, command: Command) -> Pending:
        self._requests += 1
        pending = Pending(command.code, self._now(), link.client.host.clock.boot_ms(), self._requests)
        if not command.is_oneway:
            link.pending[command.opaque] = pending
        return pending

    def _from_broker(self, link: Link, command: Command) -> None:
        frame = Frame(link, command, self._now(), self._groups)
        if not command.is_response:
            if (push := PUSHES.get(command.code)) is not None:
                for event in push(frame):
                    self._history.append(event)
            return
        rare = _RARE.get(command.code)
        if rare is not None:
            self._history.append(PlaceReached(*frame.server, f"{rare} returned", command.remark or ""))
        pending = link.pending.pop(command.opaque, None)
        if pending is None:
            return
        arriving: list[Event] = []
        for event in RESPONSES[pending.code](frame, pending):
            (arriving if event.process == link.client.number else self._history).append(event)
        if arriving or pending.lost:
            down = link.down
            down.waiting.append((down.written - down.buffer.pending_bytes, pending.lost, arriving))
