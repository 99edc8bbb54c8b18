"""Plays exchanges between RocketMQ's clients and simulated servers. tests/sim/java has them as text, one request and its response a line.

    == title                               a law, on servers of its own; before the first one are macros, and lines that begin each law
    put topic read write=1: 17 topic=$topic readQueueNums=$read writeQueueNums=$write
                                           a macro: parameters (by position or name, some with defaults), then a request
    a put orders 2 perm=6 => 0             connection `a` sends a request with one more field, and its response has code 0 and nothing else
    a 202 topic=missing => 17 ~ no topic   a refusal, with words of its remark. Each code but those of pulls has a remark, and 0 has none
    a 29 queueId=0 => 0 offset=<end>       `<end>` takes the value, or if it has one compares it, or is an expression: `<end+1>`
    a 28 => 0 … | {"table":{…}}            `…` is any text; as a field: there may be more of them. `|` is followed by the body
    a 11 queueId=0 => 0 … |bodies 1 2      a body in another form (VIEWS)
    a 310 b=orders @479 | text             the version of the client; without `=>` the code is 0 and the rest is not compared
    a 307 clientId=m &                     does not wait, and there is no response yet; `a => 0` waits. `until` before a line repeats it
    m <- 307 clientId=m flag=0             m receives a request, and nothing but notices before it; `m -> 0 | text` is the response
    for n,text 1,one 2,two                 plays the lines up to `end` for each value, or for values of each
    let name text                          gives a name its value. `check` is followed by an expression, also about `body` and `fields`

Methods `do_…` of Exchange are the other first words. A line that begins with a blank continues the one before, without a blank after a
comma or a bracket, and ` ;; ` is between statements. `\\1`, `\\2`, `\\n` and `\\q` are those characters and a quote; 'a word' is in quotes.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.client import Message, Producer, PullConsumer, ReplyUndeliveredError
from lockstep.client import Reply as SdkReply
from lockstep.client.client import Client
from lockstep.client.topics import create_topic
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.bodies import BrokerAddress, GroupSettings, QueueOffset, ResetBody, SubscriptionPolicy
from lockstep.protocol.messages.record import RecordView
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.host import Host
from lockstep.testing.simulated import BROKER_PORT, SimServer, SimStage
from lockstep.testing.simulation import SimLoop
from support.java_wire import JavaWire, Reply, batch, dialled, records, split_records
from support.native import Member, Native

PULLED = (19, 20, 21)
"""Codes of pulls that found nothing."""
NOTICE = 40
"""The list of members has changed."""
WAITS_S = 60
SPECIAL = {r"\1": "\x01", r"\2": "\x02", r"\n": "\n", r"\q": "'"}
SETTINGS: dict[str, Any] = {"store": "/store", "insecure": True, "segment_mib": 1, "disk_used_percent_max": 100}
SETTINGS |= {"disconnect_grace_ms": 1_000, "session_timeout_ms": 2_000}
Macros = dict[str, tuple[dict[str, str], str]]
"""Name → defaults of the parameters, and the request."""


def message(record: bytes) -> str:
    """Return the offset, the body and the properties of a stored message."""
    ((offset, body, properties),) = records(record)
    return f"{offset}:{body.decode()}:" + ";".join("=".join(pair) for pair in properties.items())


def route(body: bytes) -> str:
    """Return broker, permission and counts of queues of each entry of a route."""
    names = ("brokerName", "perm", "readQueueNums", "writeQueueNums")
    return ", ".join(" ".join(str(each[name]) for name in names) for each in json.loads(body.replace(b"{0:", b'{"0":'))["queueDatas"])


def assigned(body: bytes) -> str:
    """Return the queues that a broker assigns."""
    found = json.loads(body)["messageQueueAssignments"]
    assert all((each["mode"], each["messageQueue"]["topic"]) == ("PULL", "orders") for each in found)
    return " ".join("{brokerName}:{queueId}".format(**each["messageQueue"]) for each in found)


VIEWS: dict[str, Callable[[bytes], object]] = {
    "bodies": lambda record: records(record)[0][1].decode(),
    "hexes": lambda record: records(record)[0][1].hex(),
    "records": message,
    "flags": lambda record: int.from_bytes(record[36:40], "big"),
    "times": lambda record: int.from_bytes(record[56:64], "big"),
    "routes": lambda record: f"{RecordView(record).topic.decode()} {RecordView(record).queue_id}",
    "reconsumed": lambda record: int.from_bytes(record[72:76], "big"),
}
"""Views of each stored message."""


def shown(view: str, body: bytes) -> str:
    if view in VIEWS:
        return " ".join(str(VIEWS[view](record)) for record in split_records(body))
    return {"": lambda: body.decode(errors="replace"), "route": lambda: route(body), "assigned": lambda: assigned(body)}[view]()


class Law(NamedTuple):
    title: str
    macros: Macros
    lines: list[tuple[int, str]]


def parts_of(path: Path) -> list[tuple[str, list[tuple[int, str]]]]:
    """Return the lines of a file with their numbers: those before the first law, and those of each law, with its title."""
    parts: list[tuple[str, list[tuple[int, str]]]] = [("", [])]
    for number, line in enumerate(path.read_text().splitlines(), 1):
        lines = parts[-1][1]
        if line.startswith("== "):
            parts.append((line[3:], []))
        elif line.startswith(" "):
            at, before = lines.pop()
            lines.append((at, before + ("" if before[-1] in ",{[" else " ") + line.strip()))
        elif line and line[0] != "#":
            lines.append((number, line))
    return parts


def laws(path: Path) -> Iterator[Law]:
    """Read the laws of a file. The macros of macros.txt beside it are in each file."""
    (_, before), *parts = parts_of(path)
    macros: Macros = {}
    begin = []
    for number, line in parts_of(path.with_name("macros.txt"))[0][1] + before:
        if found := re.match(r"(\w+)((?: [^:|]*)?): (.*)", line):
            macros[found[1]] = pairs_of(found[2].split()), found[3]
        else:
            begin.append((number, line))
    for title, lines in parts:
        yield Law(title, macros, begin + lines)


def words_of(text: str) -> list[str]:
    """Split at blanks, except in single quotes and in expressions."""
    words = re.findall(r"(?:<[^<>]*>|'[^']*'|[^\s'<])+", text)
    return [re.sub(r"(<[^<>]*>)|'([^']*)'", lambda found: found[1] or found[2], word) for word in words]


def pairs_of(words: Sequence[str]) -> dict[str, str]:
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def split_body(text: str) -> tuple[str, str, str | None]:
    """Return what is before the body, the name of its view, and the body if there is one."""
    found = re.match(r"(.*?) \|(\w*)(?: (.*))?$", text, re.DOTALL)
    return (found[1], found[2], found[3] or "") if found else (text, "", None)


def typed(value: str) -> Any:
    return int(value) if re.fullmatch(r"-?\d{1,18}", value) else value


def special(text: str) -> str:
    return re.sub(r"\\[12nq]", lambda found: SPECIAL[found[0]], text)


class Exchange:
    """Servers, connections to them, and the values that were received so far."""

    def __init__(self, macros: Macros, kind: int) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.stage = SimStage(loop)
        self._loop = loop
        self._macros = macros
        self._kind = kind
        self._values: dict[str, Any] = {"json": json}
        self._servers: dict[str, SimServer] = {}
        self._options: dict[str, tuple[str, ...]] = {}
        self._wires: dict[str, tuple[str, JavaWire]] = {}
        """Server and connection, by name."""
        self._pending: dict[str, asyncio.Task[Reply]] = {}
        self._asked: dict[str, int] = {}
        self._member: Member | None = None
        self._sdk = AsyncExitStack()
        """Producers and consumers of the SDK."""
        self._request: asyncio.Task[SdkReply] | None = None
        self._replied: asyncio.Task[None] | None = None

    async def play(self, lines: Sequence[tuple[int, str]], at: int = 0) -> int:
        """Play the lines from `at` on, to the end of a loop or of all. Return where it ended."""
        while at < len(lines) and lines[at][1] != "end":
            number, line = lines[at]
            at += 1
            try:
                if line.startswith("for "):
                    names, *values = words_of(line)[1:]
                    for value in values:
                        before = dict(self._values)
                        self._values |= zip(names.split(","), map(typed, self._filled(value).split(",", names.count(","))), strict=True)
                        end = await self.play(lines, at)
                        self._values = before
                    at = end + 1
                else:
                    for part in line.split(" ;; "):
                        await self._step(part)
            except AssertionError as error:
                raise AssertionError(f"line {number}: {line}\n{error}") from None
        return at

    # --------------------------------------------------------------------------------------------------------------- servers

    async def do_broker(self, name: str, *options: str) -> None:
        """Start a broker, the nameserver before the first one. Their addresses become values."""
        if not self._servers:
            await self._add("nameserver", self.stage.nameserver("nameserver"))
        machine = self.stage._machine(server=True)
        settings = {**SETTINGS, "name": name, "listen": (f"{machine.name}:{BROKER_PORT}",), "nameserver": self._values["nameserver"]}

        def make() -> Broker:
            return Broker(BrokerConfig(**settings, **dict.fromkeys(self._options[name], True)), Host.current())  # type: ignore[arg-type]

        await self._add(name, SimServer(self._loop, name, machine, BROKER_PORT, make), *options)

    async def _add(self, name: str, server: SimServer, *options: str) -> None:
        self._servers[name], self._options[name] = self.stage._added(server), options
        self._values[name.replace("-", "_")] = server.address
        await server.start()

    async def do_server(self, how: str, name: str, *options: str) -> None:
        """Stop, kill or cut_power a server and close its connections, or start it again, with other options if there are some."""
        for each in [each for each, (server, _) in self._wires.items() if server == name]:
            self.do_close(each)
        if how == "cut_power":
            await asyncio.sleep(2)  # the disk has everything
        self._options[name] = options or self._options[name]
        await getattr(self._servers[name], how)()

    async def do_topic(self, name: str, queues: str) -> None:
        """Create a topic as `lockstep topic create` does."""
        instance = Client(self._values["nameserver"]).instance()
        await instance.start()
        await create_topic(instance, name, int(queues))
        await instance.close()

    async def do_reset(self, group: str, topic: str, queue_id: str, offset: str) -> None:
        """Reset a group as `lockstep group reset-offset` does."""
        admin, (broker, *_) = await self._admin()
        await admin.reset(broker, ResetBody(group, topic, (QueueOffset(int(queue_id), int(offset)),)))

    async def do_sdk_sends(self, topic: str, body: str, name: str, value: str) -> None:
        """Send a message with a property as a producer of lockstep's SDK."""
        async with Producer("shop", nameserver=self._values["nameserver"]) as producer:
            await producer.send(Message(topic, body.encode(), properties={name: value}))

    async def do_sdk_asks(self, topic: str, body: str, timeout_ms: str = "60000") -> None:
        """Send a request as a producer of lockstep's SDK. `sdk_got` compares its reply."""
        producer = await self._sdk.enter_async_context(Producer("asking-sdk", nameserver=self._values["nameserver"]))
        self._request = asyncio.create_task(producer.request(Message(topic, body.encode()), timeout_ms=int(timeout_ms)))

    async def do_sdk_got(self, body: str) -> None:
        """Compare the body of the reply. Its `properties` become a value."""
        assert self._request is not None
        found = await self._request
        assert found.body.decode() == body, found
        self._values["properties"] = found.properties

    async def do_sdk_replies(self, topic: str, body: str) -> None:
        """Wait for a message as a pull consumer of lockstep's SDK, and reply to it. `sdk_replied` waits for the end of the reply."""
        consumer = PullConsumer("replying-sdk", nameserver=self._values["nameserver"]).subscribe(topic)
        await self._sdk.enter_async_context(consumer)
        (message,) = await consumer.poll(WAITS_S * 1_000)
        self._replied = asyncio.create_task(consumer.reply(message, body.encode(), properties={"currency": "USD"}))

    async def do_sdk_replied(self, *why: str) -> None:
        """Wait until the reply is delivered, or if there are words, until it was not because of them."""
        assert self._replied is not None
        (error,) = await asyncio.gather(self._replied, return_exceptions=True)
        assert (error is None) == (not why), error
        assert error is None or (isinstance(error, ReplyUndeliveredError) and why[0] in str(error)), error

    async def do_sdk_reads(self, topic: str) -> None:
        """Set `body` to the messages of queue 0 as lockstep's tools read them."""
        admin, (broker, *_) = await self._admin()
        self._values["body"] = (await admin.pull(broker, topic, 0, 0, 32))[0].decode(errors="replace")

    async def do_sdk_group(self, group: str, policy: str = "") -> None:
        """Set a group's subscription policy as `lockstep group create` does, or set `settings` to those at each broker."""
        admin, brokers = await self._admin()
        if policy:
            await asyncio.gather(*(admin.configure(each, GroupSettings(group, SubscriptionPolicy(policy))) for each in brokers))
        found = [(await admin.group_status(each, group)).status for each in brokers]
        self._values["settings"] = [each.settings for each in found if each]

    async def _admin(self) -> tuple[AdminClient, tuple[BrokerAddress, ...]]:
        admin = AdminClient(Host.current(), self._values["nameserver"])
        return admin, tuple(await admin.brokers())

    async def do_member(self, group: str) -> None:
        """Join a group as an ordered consumer of lockstep's SDK, and lock queue 0, also again. `epoch` is that of the lock."""
        if self._member is None:
            endpoint = await connect(Host.current(), self._servers["broker-a"].address, handler=lambda command, _: None)
            self._member = Member(Native(endpoint, asyncio.Queue()), "orders", group, client_id="sdk@1")
            await self._member.join()
        self._values["epoch"] = (await self._member.lock()).epoch

    async def do_member_commits(self, offset: str) -> None:
        assert self._member is not None
        await self._member.commit(self._values["epoch"], int(offset))

    # ----------------------------------------------------------------------------------------------------------- connections

    async def do_connect(self, name: str, server: str = "broker-a", language: str = "JAVA", version: str = "409") -> None:
        """Open a connection, as a client of that language and version. Its name becomes a value, the address of its end."""
        self.do_close(name)
        wire = await dialled(self._servers[server].address, self._kind)
        wire.language, wire.version = typed(language), int(version)
        self._wires[name] = server, wire
        self._values[name] = "{}:{}".format(*wire.writer.get_extra_info("sockname")[:2])

    def do_close(self, name: str) -> None:
        if name in self._wires:
            self._wires.pop(name)[1].writer.close()

    async def _wire(self, name: str) -> JavaWire:
        """Return a connection: `names` is to the nameserver, `b` to broker-b, and most other names are to broker-a."""
        if name not in self._wires:
            await self.do_connect(name, {"names": "nameserver", "b": "broker-b", "c": "broker-c"}.get(name, "broker-a"))
        return self._wires[name][1]

    async def close(self) -> None:
        for name in list(self._wires):
            self.do_close(name)
        await self._sdk.aclose()
        if self._member is not None:
            self._member.client.endpoint.abort("done")
        for task in self._pending.values():
            task.cancel()
        await asyncio.gather(*self._pending.values(), return_exceptions=True)
        await self.stage.close()

    # ----------------------------------------------------------------------------------------------------------------- lines

    async def _step(self, line: str) -> None:
        left, arrow, right = line.partition(" => ")
        name, _, rest = left.partition(" ")
        if name == "until":
            async with asyncio.timeout(WAITS_S):
                while True:
                    try:
                        return await self._step(line[6:])
                    except AssertionError:
                        await asyncio.sleep(0.1)
        elif name == "let":
            name, _, text = rest.partition(" ")
            whole = re.fullmatch(r"<([^<>]+)>", text)
            self._values[name] = self._value(whole[1]) if whole else typed(self._filled(text))
        elif name == "check":
            assert self._value(rest), self._values
        elif do := getattr(self, f"do_{name}", None):
            done = do(*map(self._filled, words_of(rest)))
            if asyncio.iscoroutine(done):
                await done
        elif rest.startswith("<- "):
            await self._receive(name, rest[3:])
        elif rest.startswith("-> "):
            head, _, body = split_body(rest[3:])
            code, _, remark = head.partition(" ~ ")
            self._wires[name][1].respond(self._asked.pop(name), int(code), self._filled(body or "").encode(), remark or None)
        elif rest.endswith(" &"):
            self._pending[name] = asyncio.create_task(self._call(name, rest[:-2]))
            await asyncio.sleep(0.1)  # the server has it before it gets what follows
            assert not self._pending[name].done(), "there is a response"
        else:
            self._check(await (self._call(name, rest) if rest else self._pending.pop(name)), right if arrow else "0 …")

    async def _call(self, name: str, text: str) -> Reply:
        """Send a request, and return its response."""
        head, view, body = split_body(text)
        code, *words = words_of(head)
        if code in self._macros:
            defaults, template = self._macros[code]
            unnamed = [word for word in words if "=" not in word and word[0] != "@"]
            filled = {**defaults, **dict(zip(defaults, unnamed, strict=False)), **pairs_of(words)}
            head, own_view, own_body = split_body(re.sub(r"\$(\w+)", lambda found: filled[found[1]], template))
            view, body = (own_view, own_body) if body is None else (view, body)
            code, *own = words_of(head)
            words = own + [word for word in words if word not in unnamed and word.partition("=")[0] not in defaults]
        version = next((int(word[1:]) for word in words if word[0] == "@"), None)
        fields = {key: self._filled(value) for key, value in pairs_of([word for word in words if word[0] != "@"]).items()}
        plain = self._filled(body or "")
        if view == "batch":
            data = batch(*((body.encode(), properties) for body, _, properties in (each.partition(":") for each in words_of(plain))))
        else:
            data = bytes.fromhex(plain) if view == "hex" else plain.encode()
        return await (await self._wire(name)).call(int(self._filled(code)), fields, data, version=version)

    async def _receive(self, name: str, text: str) -> None:
        code = int(text.split()[0])
        while True:
            flag, self._asked[name], request = await self._wires[name][1].next_request()
            if request.code == code:
                break
            assert request.code == NOTICE, request
        request.fields["flag"] = str(flag)
        self._compare(request, text)

    # -------------------------------------------------------------------------------------------------------------- comparing

    def _check(self, reply: Reply, text: str) -> None:
        head, bar, rest = text.partition(" |")
        head, tilde, words = head.partition(" ~ ")
        assert str(reply.code) in head.split()[0].split("/"), (reply.code, reply.remark)
        assert reply.code in PULLED or (reply.remark is None) == (reply.code == 0), reply.remark
        assert not tilde or self._filled(words) in (reply.remark or ""), reply.remark
        self._compare(reply, head + bar + rest)

    def _compare(self, found: Reply, text: str) -> None:
        """Compare fields and body."""
        head, view, body = split_body(text)
        wanted = pairs_of(words_of(head)[1:])
        others = wanted.pop("…", None)
        assert others is not None or found.fields.keys() == wanted.keys(), found.fields
        for key, value in wanted.items():
            self._match(value, found.fields.get(key, ""))
        self._values["fields"], self._values["body"] = found.fields, shown(view, found.body)
        if body is not None or others is None:
            self._match(body or "", self._values["body"])

    def _match(self, pattern: str, found: str) -> None:
        """Compare a text with a pattern, and keep the values of its new names."""
        parts, new = "", set()
        for part in re.split(r"(…|<[^<>]+>)", special(pattern)):
            name = part[1:-1]
            if not part.startswith("<"):
                parts += ".*" if part == "…" else re.escape(part)
            elif name in new or (name.isidentifier() and name not in self._values):
                parts += f"(?P={name})" if name in new else rf"(?P<{name}>[^\s\",{{}}]+?)"
                new.add(name)
            else:
                parts += re.escape(str(self._value(name)))
        match = re.fullmatch(parts, found, re.DOTALL)
        assert match, f"expected {pattern[:2_000]}\nfound    {found[:2_000]}"
        self._values |= {key: typed(value) for key, value in match.groupdict().items()}

    def _filled(self, text: str) -> str:
        """Return a text with the values of its names."""
        return re.sub(r"<([^<>]+)>", lambda found: str(self._value(found[1])), special(text))

    def _value(self, expression: str) -> Any:
        return eval(expression, dict(self._values))


async def play(law: Law, kind: int) -> None:
    """Play a law. At its end no server has had an unhandled error."""
    exchange = Exchange(law.macros, kind)
    try:
        await exchange.play(law.lines)
        assert not exchange.stage.errors()
    finally:
        await exchange.close()
