"""lockstep tail. It uses no group's progress and takes no lock, so it changes nothing."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from lockstep.admin.client import READER_GROUP, AdminClient, by_name, gather_results
from lockstep.admin.commands.message import message_json
from lockstep.admin.options import NameserverOption, TopicArgument, print_error, run
from lockstep.admin.render import body_text, format_time, json_text
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.bodies import TopicRoute
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import BrokerError, RemoteProtocolError, TransportError, broker_error
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullHeader, PullReply
from lockstep.protocol.message import MessageExt, decode_messages
from lockstep.protocol.queue import MessageQueue
from lockstep.protocol.tags import TagFilter
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.link import Link
from lockstep.runtime.safe_text import printable

HOLD_MS = 15_000
"""How long the broker holds a pull that finds no messages. RocketMQ: brokerSuspendMaxTimeMillis."""
PULL_TIMEOUT_MS = 30_000
REFRESH_S = 10
"""Time between two reads of the route, which may have new queues or broker addresses."""
PAUSE_S = 1
"""After a failed pull."""
BYTES_MAX = 256 * 1024
COUNT_MAX = 256
END_S = 3
"""Ctrl-C ends it after this at the latest, even during a name lookup or when the reader of its output has stopped reading."""
PULLED_NOTHING = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
"""Responses without messages that contain the next offset to pull."""


def tail_command(
    topic: TopicArgument,
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the first stored message of every queue.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="Exit after N messages. By default run until Ctrl-C.")] = None,
    tag: Annotated[
        str, typer.Option("--tag", "-t", help="Print only messages with this tag, or one of several: 'A || B'. * matches all.")
    ] = "*",
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document per line.")] = False,
) -> None:
    """Print a topic's messages as they are stored, beginning at the end of every queue. Press Ctrl-C to stop."""
    run(_tail(topic, from_start, count, tag, nameserver, as_json), interrupted=0, end_s=END_S)


async def _tail(topic: str, from_start: bool, count: int | None, tag: str, nameserver: str, as_json: bool) -> None:
    for suspect in TagFilter.parse(tag).suspicious_tags():
        print_error(f"--tag: {suspect!r} is matched as one tag; write several tags as 'a || b'")
    admin = AdminClient(Host.current(), nameserver)
    tail = Tail(admin, topic, tag, from_start=from_start, show=_show_json if as_json else _show_line)
    await tail.run(count)


def _show_json(message: MessageExt) -> None:
    print(json_text(message_json(message)), flush=True)


def _show_line(message: MessageExt) -> None:
    facts = [format_time(message.stored_ms), f"{message.broker_name}:{message.queue_id}", str(message.queue_offset)]
    facts += [f"tag={message.tags}"] if message.tags else []
    facts += [f"key={key}" for key in message.keys]
    facts += [f"sharding-key={message.sharding_key}"] if message.sharding_key else []
    print(f"{printable(' '.join(facts))}  {body_text(message)}", flush=True)


class Tail:
    """Reads every queue of a topic, with one task per queue and one connection per broker."""

    def __init__(self, admin: AdminClient, topic: str, expression: str, *, from_start: bool, show: Callable[[MessageExt], None]) -> None:
        self._admin = admin
        self._topic = topic
        self._expression = expression
        self._filter = TagFilter.parse(expression)
        self._from_start = from_start
        self._show = show
        self._addresses: dict[str, str] = {}
        self._links: dict[str, Link] = {}
        self._queues: dict[MessageQueue, None] = {}
        self._failing: dict[str, None] = {}
        """Brokers whose failure was printed, and that have not responded since."""
        self._remaining: int | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = Tasks(on_failure=self._fail)

    async def run(self, count: int | None) -> None:
        """Show `count` messages, or run until cancelled if it is None. Raise TopicNotExistError if the topic does not exist."""
        self._remaining = count
        try:
            await self._begin()
            self._tasks.spawn(self._watch(), "tail.watch")
            await self._done
        finally:
            await self._tasks.cancel_all()
            await asyncio.gather(*(link.close() for link in self._links.values()))

    async def _begin(self) -> None:
        """Read the ends of all queues at once, so that every message that is stored from now on is shown."""
        route = await self._admin.route(self._topic)
        brokers = by_name(route.brokers)
        results = await gather_results({name: self._admin.offsets(broker, self._topic) for name, broker in brokers.items()})
        for name, why in results.failed.items():
            self._report_failure(name, why)
        starts = {
            MessageQueue(self._topic, name, at.queue_id): at.min_offset if self._from_start else at.max_offset
            for name, ranges in results.values.items()
            for at in ranges
        }
        self._follow(route, starts)
        print(f"lockstep: reading {len(self._queues)} queues of {self._topic}; press Ctrl-C to stop", file=sys.stderr, flush=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                self._follow(await self._admin.route(self._topic), {})
            except (TransportError, BrokerError):
                # Keep reading the known queues: nameservers come back, and pulls from a deleted topic's queues fail with that error.
                continue

    def _follow(self, route: TopicRoute, starts: Mapping[MessageQueue, int]) -> None:
        """Start reading every queue of the route that is not read yet, from its offset in `starts`, else from its first message."""
        for broker in route.brokers:
            self._addresses[broker.name] = broker.address
        for queue in route.layout.read_queues:
            if queue not in self._queues and queue.broker_name in self._addresses:
                self._queues[queue] = None
                self._tasks.spawn(self._read(queue, starts.get(queue, 0)), f"tail {queue}")

    def _link(self, broker: str) -> Link:
        if broker not in self._links:
            self._links[broker] = Link(self._admin.host, lambda: self._addresses[broker])
        return self._links[broker]

    async def _read(self, queue: MessageQueue, offset: int) -> None:
        while True:
            try:
                offset = await self._pull(queue, offset)
                self._failing.pop(queue.broker_name, None)
            except (TransportError, BrokerError, RemoteProtocolError) as error:
                self._report_failure(queue.broker_name, str(error))
                await asyncio.sleep(PAUSE_S)

    async def _pull(self, queue: MessageQueue, offset: int) -> int:
        """Make one long poll. Return the next offset to pull."""
        header = PullHeader(
            READER_GROUP,
            queue.topic,
            queue.queue_id,
            offset,
            max_msg_nums=COUNT_MAX,
            sys_flag=SUSPEND | SUBSCRIPTION,
            suspend_timeout_millis=HOLD_MS,
            subscription=self._expression,
            expression_type="TAG",
            max_msg_bytes=BYTES_MAX,
        )
        endpoint = await self._link(queue.broker_name).endpoint(PULL_TIMEOUT_MS)
        response = await endpoint.request(RequestCode.PULL_MESSAGE, to_plain(header), timeout_ms=PULL_TIMEOUT_MS)
        if response.code == ResponseCode.SUCCESS:
            for message in decode_messages(bytes(response.body), queue.broker_name):
                self._show_matching(message)
        elif response.code not in PULLED_NOTHING:
            raise broker_error(response.code, response.remark)
        return from_plain(PullReply, response.fields).next_begin_offset

    def _show_matching(self, message: MessageExt) -> None:
        if self._done.done() or not self._filter.matches_tag(message.tags):
            return
        self._show(message)
        if self._remaining is not None:
            self._remaining -= 1
            if self._remaining <= 0:
                self._done.set_result(None)

    def _report_failure(self, broker: str, why: str) -> None:
        if broker not in self._failing:
            self._failing[broker] = None
            print_error(f"broker {broker}: {why}; retrying every {PAUSE_S} s")

    def _fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)
