"""lockstep tail: what arrives in a topic, as it arrives. It reads without a group's progress and holds no lock: it changes nothing."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from lockstep.admin.client import READER, AdminClient, by_name, gather
from lockstep.admin.commands.message import message_json
from lockstep.admin.options import NameserverOption, complain, run
from lockstep.admin.render import body_text, json_text, stamp
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
"""How long the broker holds a pull that finds nothing. RocketMQ: brokerSuspendMaxTimeMillis."""
PULL_TIMEOUT_MS = 30_000
REFRESH_S = 10
"""New queues and moved brokers are looked for so often."""
PAUSE_S = 1
"""After a failed pull."""
BYTES_MAX = 256 * 1024
COUNT_MAX = 256
END_S = 3
"""Ctrl-C ends it after this at the latest, also where a name is being looked up or whoever reads its output has stopped reading."""
GO_ON = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
"""Answers without messages that name the offset to go on with."""


def tail_command(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the first stored message.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="End after so many messages.")] = None,
    tag: Annotated[str, typer.Option("--tag", "-t", help="Only messages with this tag; `A || B` for several.")] = "*",
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")] = False,
) -> None:
    """Print messages as they are stored, from the end of every queue on. Ctrl-C ends it."""
    run(_tail(topic, from_start, count, tag, nameserver, as_json), interrupted=0, end_s=END_S)


async def _tail(topic: str, from_start: bool, count: int | None, tag: str, nameserver: str, as_json: bool) -> None:
    for odd in TagFilter.parse(tag).suspicious_tags():
        complain(f"{odd!r} is taken as one tag; several are written: 'a || b'")
    admin = AdminClient(Host.current(), nameserver)
    tail = Tail(admin, topic, tag, from_start=from_start, show=_show_json if as_json else _show_line)
    await tail.run(count)


def _show_json(message: MessageExt) -> None:
    print(json_text(message_json(message)), flush=True)


def _show_line(message: MessageExt) -> None:
    facts = [stamp(message.stored_ms), f"{message.broker_name}:{message.queue_id}", str(message.queue_offset)]
    facts += [f"tag={message.tags}"] if message.tags else []
    facts += [f"key={key}" for key in message.keys]
    facts += [f"sharding-key={message.sharding_key}"] if message.sharding_key else []
    print(f"{printable(' '.join(facts))}  {body_text(message)}", flush=True)


class Tail:
    """Reads every queue of a topic, each in a loop of its own, over one connection a broker."""

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
        self._silent: dict[str, None] = {}
        """Brokers whose failure has been told."""
        self._left: int | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = Tasks(on_failure=self._fail)

    async def run(self, count: int | None) -> None:
        """Show `count` messages (None: for ever). TopicNotExistError where there is no such topic at the start."""
        self._left = count
        try:
            await self._begin()
            self._tasks.spawn(self._watch(), "tail.watch")
            await self._done
        finally:
            await self._tasks.cancel_all()
            await asyncio.gather(*(link.close() for link in self._links.values()))

    async def _begin(self) -> None:
        """Take the ends of all queues at once, so that what is stored from now on is shown."""
        route = await self._admin.route(self._topic)
        brokers = by_name(route.brokers)
        answers = await gather({name: self._admin.offsets(broker, self._topic) for name, broker in brokers.items()})
        for name, why in answers.failed.items():
            self._complain(name, why)
        starts = {
            MessageQueue(self._topic, name, at.queue_id): at.min_offset if self._from_start else at.max_offset
            for name, ranges in answers.given.items()
            for at in ranges
        }
        self._follow(route, starts)
        print(f"lockstep: reading {len(self._queues)} queues of {self._topic}; Ctrl-C ends", file=sys.stderr, flush=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                self._follow(await self._admin.route(self._topic), {})
            except (TransportError, BrokerError):
                # A running tail goes on with what it knows: nameservers come back, and a deleted topic's queues say so themselves.
                continue

    def _follow(self, route: TopicRoute, starts: Mapping[MessageQueue, int]) -> None:
        """Read every queue of the route that is not read yet: from `starts`, a queue that came later from its first message."""
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
                self._silent.pop(queue.broker_name, None)
            except (TransportError, BrokerError, RemoteProtocolError) as error:
                self._complain(queue.broker_name, str(error))
                await asyncio.sleep(PAUSE_S)

    async def _pull(self, queue: MessageQueue, offset: int) -> int:
        """One long poll; the offset to go on with."""
        header = PullHeader(
            READER,
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
        answer = await endpoint.request(RequestCode.PULL_MESSAGE, to_plain(header), timeout_ms=PULL_TIMEOUT_MS)
        if answer.code == ResponseCode.SUCCESS:
            for message in decode_messages(bytes(answer.body), queue.broker_name):
                self._take(message)
        elif answer.code not in GO_ON:
            raise broker_error(answer.code, answer.remark)
        return from_plain(PullReply, answer.fields).next_begin_offset

    def _take(self, message: MessageExt) -> None:
        if self._done.done() or not self._filter.matches_tag(message.tags):
            return
        self._show(message)
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self._done.set_result(None)

    def _complain(self, broker: str, why: str) -> None:
        if broker not in self._silent:
            self._silent[broker] = None
            complain(f"broker {broker}: {why}; trying on")

    def _fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)
