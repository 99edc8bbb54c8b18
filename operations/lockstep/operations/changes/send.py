"""Send a message as an operator does."""

from dataclasses import dataclass
from typing import Annotated, Any, Self

from lockstep.client.producer.machines.routing import queue_of_key
from lockstep.client.producer.producer import Producer
from lockstep.client.producer.result import SendResult
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan
from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.messages.message import Message
from lockstep.protocol.messages.properties import check_text

PRODUCER_GROUP = "LOCKSTEP_CLI"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSend(Operation):
    """Send one message, and print its queue, its offset and its ids."""

    words = ("send",)
    path = "send"
    title = "Send a message"

    topic: Annotated[str, Argument(help="The topic's name.", label="Topic")]
    sharding_key: Annotated[
        str | None,
        Option(
            flags=("--sharding-key", "-s"),
            help="Messages of one sharding key go to one queue, in order.",
            label="Sharding key",
            hint="its messages stay in order",
            verbatim=True,
        ),
    ] = None
    tag: Annotated[str | None, Option(flags=("--tag", "-t"), help="The message's tag, by which subscriptions filter.", label="Tag")] = None
    keys: Annotated[
        tuple[str, ...],
        Option(flags=("--key", "-k"), help="A key of the message; may be repeated.", label="Keys", hint="separated by spaces"),
    ] = ()
    properties: Annotated[
        tuple[str, ...], Option(flags=("--property", "-p"), metavar="NAME=VALUE", help="A user property; may be repeated.")
    ] = ()
    body: Annotated[bytes, Argument(help="The message body as text, or - to read its bytes from stdin.", label="Body", lines=6)]

    @classmethod
    def of_form(cls, **values: Any) -> Self:
        return cls(**values, properties=("sent_by=lockstep-dashboard",))

    async def plan(self, admin: AdminClient) -> Plan:
        if self.sharding_key is not None:
            check_text("sharding key", self.sharding_key)
        properties = dict(map(_property, self.properties))
        message = Message(self.topic, self.body, tags=self.tag, keys=list(self.keys), properties=properties, sharding_key=self.sharding_key)
        layout = await admin.find_layout(self.topic)
        if layout is not None and not layout.write_queues:
            raise OperationError(f"topic {self.topic} has no queue to write to")

        async def carry_out() -> ChangeOutcome:
            result = await send_message(admin, message)
            ids = f"id {result.message_id}, offset id {result.offset_message_id or 'unknown'}"
            found = {
                "status": result.status.name,
                "message_id": result.message_id,
                "offset_message_id": result.offset_message_id,
                "topic": self.topic,
                "broker": result.queue.broker_name,
                "queue_id": result.queue.queue_id,
                "queue_offset": result.queue_offset,
            }
            return ChangeOutcome([f"{result.status.name} {result.queue} offset {result.queue_offset}, {ids}"], found)

        where = "any queue"
        if layout is not None and self.sharding_key is not None:
            where = f"{queue_of_key(layout, self.sharding_key)}, the queue of its sharding key"
        effect = f"One message of {len(self.body):,} bytes is sent to {where}. Every group that consumes topic {self.topic} receives it."
        missing = f"topic {self.topic} does not exist: create it first" if layout is None else None  # or a broker creates it
        return Plan([effect], carry_out, (self.body,), nothing=missing)


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise LocalProtocolError(f"--property {text!r}: expected NAME=VALUE")
    return name, value


async def send_message(admin: AdminClient, message: Message) -> SendResult:
    """Send one message. Raise TransportError at once if no nameserver responds, and what `Producer.send` raises."""
    # A producer retries until a nameserver responds; an operator gets the error at once.
    await admin.brokers()
    async with Producer(PRODUCER_GROUP, nameserver=admin.address) as producer:
        return await producer.send(message)
