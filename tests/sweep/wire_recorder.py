"""Records the traffic of every connection to a broker: requests, responses, and when each response arrived.

Each direction of a connection is decoded once, when it is written. A response counts as sent when the broker wrote it, and as received
when its last byte was passed to the other end. wire_readers.py turns frames into events; connections to nameservers are not read.
"""

from collections.abc import Callable, Mapping

from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.testing.simulation import Process
from sweep.access_readers import answered, given_up, user_of
from sweep.connections import Frame, Link
from sweep.events.access import LoginAccepted
from sweep.events.locks import ConnectionCut
from sweep.history import Event, History, PlaceReached
from sweep.wire_readers import PUSHES, REQUESTS

LOGIN_DONE = b"v="
"""The beginning of the last message of a login that has succeeded."""
_RARE = {int(code): code.name for code in ResponseCode if code >= ResponseCode.STALE_EPOCH}


class WireRecorder:
    """Observes a network. `brokers`: machine name → broker name; `now`: the global virtual time in seconds.

    `intruder` is a machine whose sessions, locks and sends are nobody's work: only what brokers give to its users is recorded.
    """

    def __init__(
        self,
        history: History,
        now: Callable[[], float],
        brokers: Mapping[str, str],
        intruder: str = "",
    ) -> None:
        self._history = history
        self._now = now
        self._brokers = brokers
        self.password_of: Callable[[str], str] = lambda _: ""
        """Returns the password that the clients of a user have."""
        self.answered: Callable[[Frame, Frame], None] | None = None
        """Called with each response of a broker and its request."""
        self.cut_off: Callable[[Frame, int], None] | None = None
        """Called when a connection is cut, with the number of requests without a response."""
        self._intruder = intruder
        self._links: dict[int, Link] = {}
        self._groups: dict[tuple[str, str], list[str]] = {}
        self._requests = 0

    # ---------------------------------------------------------------------------------------------------------- the network

    def opened(self, connection: int, client: Process, server: Process, port: int) -> None:
        broker = self._brokers.get(server.machine.name)
        if broker is not None:
            self._links[connection] = Link(connection, client, server, broker, self._groups)

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
        frame = Frame(link, Command(0), self._now())
        if self.cut_off is not None:
            self.cut_off(frame, len(link.pending))
        self._history.append(ConnectionCut(*frame.client, link.broker, link.session, connection))
        for _, name, events in link.down.waiting:
            if name:
                facts = f"{link.broker} → {link.client.machine.name}: {events[0] if events else ''}"
                self._history.append(PlaceReached(*frame.server, f"response to {name} lost", facts))

    # --------------------------------------------------------------------------------------------------------------- frames

    def _request(self, link: Link, command: Command) -> None:
        if command.is_response:
            return
        if link.client.machine.name == self._intruder or command.code not in REQUESTS:
            self._note(link, command)
            return
        self._requests += 1
        read, read_response = REQUESTS[command.code]
        frame = Frame(link, command, self._now(), self._requests, link.client.host.clock.boot_ms(), read_response)
        try:
            for event in read(frame):
                self._history.append(event)
        except (RemoteProtocolError, KeyError, TypeError, AttributeError) as error:
            facts = f"code {command.code} to {link.broker}: {error!r}"
            self._history.append(PlaceReached(*frame.client, "unreadable request", facts))
        else:
            if not command.is_oneway:
                link.pending[command.opaque] = frame
                self._note_user(frame)

    def _note(self, link: Link, command: Command) -> None:
        """Keep a request that is no event for its response, if somebody looks at that."""
        is_looked_at = link.user or command.code == RequestCode.AUTHENTICATE or self.answered is not None
        if is_looked_at and not command.is_oneway:
            frame = link.pending[command.opaque] = Frame(link, command, self._now())
            self._note_user(frame)

    def _note_user(self, frame: Frame) -> None:
        link, command = frame.link, frame.command
        if command.code == RequestCode.AUTHENTICATE:
            user = user_of(bytes(command.body)) or link.login[0]
            password = self.password_of(user)
            link.login = (user, password if link.login in (("", None), (user, password)) else None)
        elif command.code == RequestCode.UNLOCK_BATCH_MQ and link.user:
            for event in given_up(frame):
                self._history.append(event)

    def _answer_user(self, frame: Frame, request: Frame) -> None:
        """Record what a user is given by a response."""
        link = frame.link
        if request.command.code == RequestCode.AUTHENTICATE:
            if frame.ok and bytes(frame.command.body).startswith(LOGIN_DONE):
                link.user = link.login[0]
                self._history.append(LoginAccepted(*frame.server, link.broker, link.connection, *link.login))
        elif link.user:
            self._history.append(answered(frame, request, link.user))

    def _from_broker(self, link: Link, command: Command) -> None:
        frame = Frame(link, command, self._now())
        if not command.is_response:
            if (push := PUSHES.get(command.code)) is not None:
                for event in push(frame):
                    self._history.append(event)
            return
        rare = _RARE.get(command.code)
        if rare is not None:
            self._history.append(PlaceReached(*frame.server, f"{rare} returned", command.remark or ""))
        request = link.pending.pop(command.opaque, None)
        if request is None:
            return
        if self.answered is not None:
            self.answered(frame, request)
        self._answer_user(frame, request)
        if request.read_response is None:
            return
        arriving: list[Event] = []
        for event in request.read_response(frame, request):
            (arriving if event.process == link.client.number else self._history).append(event)
        if arriving or request.lost:
            down = link.down
            down.waiting.append((down.written - down.buffer.pending_bytes, request.lost, arriving))
