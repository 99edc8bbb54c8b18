"""The topics that a producer has sent to."""

import asyncio
from collections.abc import Callable, Mapping

from lockstep.client.broker_link import BrokerLink
from lockstep.client.errors import Outcome, SendTimeoutError
from lockstep.client.instance import OnCheck, ProducerHooks
from lockstep.client.producer.machines.topic_machine import TopicMachine
from lockstep.client.producer.shell import ProducerShell
from lockstep.client.topics import create_topic
from lockstep.protocol.errors import LockstepError, RouteNotReadyError, StateError, TopicNotExistError, TransportError, without_frames
from lockstep.protocol.headers.tools import PushReplyHeader
from lockstep.protocol.names import how_to_create
from lockstep.protocol.topics.queue import TopicLayout
from lockstep.runtime.daemon import Tasks

ROUTE_PAUSE_MS = 100
"""Pause between two route requests while no nameserver can be reached, or none knows a broker yet."""


class _Waiter:
    """A send that waits until its topic is open."""

    __slots__ = ("_opening", "_topic", "opened")

    def __init__(self, topic: str, opening: "_Opening") -> None:
        self._topic = topic
        self._opening = opening
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(self) -> bool:
        return self.opened.done()

    def expire(self) -> None:
        why = f"not sent before its deadline ({self._opening.failure or 'no nameserver or broker has returned its route yet'})"
        self.opened.set_exception(SendTimeoutError(self._topic, Outcome.NOT_STORED, why))


class _Opening:
    """A topic whose route is being requested."""

    __slots__ = ("failure", "waiters")

    def __init__(self) -> None:
        self.waiters: list[_Waiter] = []
        self.failure: RouteNotReadyError | TransportError | None = None
        """Why the last attempt failed."""


class Topics:
    """Opens a topic at its first send, and keeps its machine informed of links and layouts from then on."""

    __slots__ = ("_closed", "_group", "_hooks", "_leaving", "_opening", "_rooms", "_shell", "_tasks", "open_topics")

    def __init__(
        self,
        group: str,
        shell: ProducerShell,
        *,
        knows_request: Callable[[str], bool],
        on_reply: Callable[[PushReplyHeader, Mapping[str, str], bytes], str | None],
        on_check: OnCheck | None,
        runs_transaction: Callable[[str], bool],
    ) -> None:
        """The last four are those of ProducerHooks."""
        self._group = group
        self._shell = shell
        self._closed = False
        self.open_topics: dict[str, TopicMachine] = {}
        """By name. Sends read it directly."""
        self._rooms: dict[tuple[str, str], TopicMachine] = {}
        """(waiting room, name) → those for messages that are to wait, of topics to which such a message was sent."""
        self._leaving: list[TopicMachine] = []
        """Topics that no further send gets. Their sends in flight continue, so they are informed of links and layouts too."""
        self._opening: dict[str, _Opening] = {}
        self._tasks = Tasks()
        self._hooks = ProducerHooks(
            on_link=self.link_changed,
            on_layout=self.layout_changed,
            send_count=self.send_count,
            knows_request=knows_request,
            on_reply=on_reply,
            on_check=on_check,
            runs_transaction=runs_transaction,
        )
        shell.instance.register_producer(group, self._hooks)

    def stop_opening(self) -> None:
        """Stop opening topics because the producer is closing. Sends in flight continue."""
        self._closed = True
        self._leaving += [*self.open_topics.values(), *self._rooms.values()]
        self.open_topics.clear()
        self._rooms.clear()

    async def close(self) -> None:
        """Stop requesting routes: sends that wait for one raise StateError."""
        try:
            await self._tasks.cancel_all()
        finally:
            # A task that is cancelled before its first step runs none of its code, so the waiters are failed here too.
            for name in list(self._opening):
                self._end(name, self._closed_error())

    def fail_all(self) -> None:
        """Fail the sends in flight after the last write. Sends that wait at the in-flight limit fail when they are admitted."""
        self._shell.instance.unregister_producer(self._hooks)
        leaving, self._leaving = self._leaving, []
        for topic in leaving:
            self._shell.fail_all(topic, self._closed_error())

    async def open(self, name: str, deadline_ms: int) -> TopicMachine:
        """Return the topic's machine; the first send to a topic requests its route or creates the topic.

        `deadline_ms` is a monotonic time.

        Raises:
            StateError: The producer is closed.
            SendTimeoutError: The topic could not be opened before the deadline.
            LockstepError: The error for which the topic can't be opened.
        """
        while (topic := self.open_topics.get(name)) is None:
            if self._closed:
                raise self._closed_error()
            opening = self._opening.get(name)
            if opening is None:
                opening = self._opening[name] = _Opening()
                self._tasks.spawn(self._open(name, opening), f"producer.open {name}")
            waiter = _Waiter(name, opening)
            opening.waiters.append(waiter)
            self._shell.expiry.add(deadline_ms, waiter)
            try:
                await waiter.opened
            finally:
                del waiter  # a future that fails holds the error, whose traceback holds this frame
        return topic

    async def open_room(self, room: str, name: str, deadline_ms: int) -> TopicMachine:
        """Return the topic's machine for messages that are to wait in this room. Raises the errors of `open`."""
        layout = (await self.open(name, deadline_ms)).layout
        topic = self._rooms.get((room, name))
        if topic is None:
            topic = self._rooms[room, name] = self._shell.open_room(layout, room, self._group)
        return topic

    async def _open(self, name: str, opening: _Opening) -> None:
        error: Exception = self._closed_error()
        try:
            layout = await self._find(name, opening)
            if not layout.write_total:
                raise TopicNotExistError(f"topic {name} has no writable queue: see `lockstep topic show {name}`")
            if not self._closed:
                self.open_topics[name] = self._shell.open(layout)
        except LockstepError as caught:
            error = without_frames(caught)
        finally:
            self._end(name, error)

    def _end(self, name: str, error: Exception) -> None:
        """End the waits for a topic: it is open, or its sends raise the error."""
        opening = self._opening.pop(name, None)
        if opening is None:
            return
        waiters, opening.waiters = opening.waiters, []
        for waiter in waiters:
            if waiter.done():
                continue
            if name in self.open_topics:
                waiter.opened.set_result(None)
            else:
                waiter.opened.set_exception(error)

    def _closed_error(self) -> StateError:
        return StateError(f"producer {self._group} is closed")

    async def _find(self, name: str, opening: _Opening) -> TopicLayout:
        """Return the topic's layout. Retry while a send waits: servers restart, and a nameserver learns its brokers within a second."""
        while True:
            try:
                return await self._find_or_create(name)
            except (RouteNotReadyError, TransportError) as error:
                opening.failure = without_frames(error)
                opening.waiters = [waiter for waiter in opening.waiters if not waiter.done()]
                if not opening.waiters:
                    raise
                await asyncio.sleep(ROUTE_PAUSE_MS / 1000)

    async def _find_or_create(self, name: str) -> TopicLayout:
        shell = self._shell
        layout = await shell.instance.watch.route(name)
        if layout is not None:
            return layout
        if not shell.config.auto_create_topics:
            raise TopicNotExistError(f"topic {name} does not exist: {how_to_create(name)}")
        return await create_topic(shell.instance, name, shell.config.topic_queue_count, auto=True)

    def link_changed(self, link: BrokerLink) -> None:
        for topic in self._all():
            self._shell.link_changed(topic, link)

    def _all(self) -> list[TopicMachine]:
        return [*self.open_topics.values(), *self._rooms.values(), *self._leaving]

    def send_count(self, broker_name: str) -> int:
        """Return how many sends to this broker's queues are not acknowledged."""
        machines = [machine for topic in self._all() for machine in topic.machines]
        return sum(machine.send_count for machine in machines if machine.queue.broker_name == broker_name)

    def layout_changed(self, layout: TopicLayout) -> None:
        for topic in self._all():
            if topic.layout.topic == layout.topic and topic.deletion is None:
                if not layout.write_total:
                    self._leave(topic)
                self._shell.adopt(topic, layout)

    def _leave(self, topic: TopicMachine) -> None:
        """Remove a topic, so that the next send opens it again."""
        name = topic.layout.topic
        if self.open_topics.get(name) is topic:
            del self.open_topics[name]
        elif topic in self._rooms.values():
            self._rooms = {key: other for key, other in self._rooms.items() if other is not topic}
        else:
            return
        self._leaving = [topic, *(other for other in self._leaving if not other.idle)]
