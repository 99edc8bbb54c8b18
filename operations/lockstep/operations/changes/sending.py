"""Send a message as an operator does."""

from lockstep.client.producer.producer import Producer
from lockstep.client.producer.result import SendResult
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.message import Message

PRODUCER_GROUP = "LOCKSTEP_CLI"


async def send_message(admin: AdminClient, message: Message) -> SendResult:
    """Send one message. Raise TransportError at once if no nameserver responds, and what `Producer.send` raises."""
    # A producer retries until a nameserver responds; an operator is told at once.
    await admin.brokers()
    async with Producer(PRODUCER_GROUP, nameserver=";".join(admin.nameservers)) as producer:
        return await producer.send(message)
