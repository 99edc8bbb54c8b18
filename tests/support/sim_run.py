"""A small simulated cluster with a few faults, determined by the seed.

As a program it prints a digest of the run, so that several interpreters can be compared."""

import asyncio
import hashlib
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.client import ConsumeOrderlyStatus, Producer, PushConsumer
from lockstep.client.client import Client
from lockstep.client.topics import create_topic
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.messages.message import Message
from lockstep.runtime.host import Host
from lockstep.testing.simulation import SimLoop

NAMESERVER, TOPIC = "10.0.0.1", "orders"
BROKERS = {"broker-a": "10.0.0.11", "broker-b": "10.0.0.12"}
CONSUMERS = ("10.0.1.1", "10.0.1.2")
PRODUCER, ADMIN = "10.0.2.1", "10.0.3.1"
Main = Callable[[], Coroutine[Any, Any, None]]


class SimRun:
    """A run: start, faults, end."""

    def __init__(self, seed: int) -> None:
        self.loop = SimLoop(seed)
        self.loop.set_exception_handler(lambda loop, context: None)
        self.handled: list[tuple[float, str, bytes]] = []
        """(t, consumer, body) of each message that a listener has handled."""
        self.sent: list[tuple[float, bytes]] = []
        """(t, body) of each acknowledged message."""

    async def nameserver(self) -> None:
        await Nameserver(NameserverConfig(listen=(f"{NAMESERVER}:9876",), insecure=True), Host.current()).start()
        await self.loop.create_future()

    def broker(self, name: str) -> Main:
        async def main() -> None:
            config = BrokerConfig(
                name=name,
                listen=(f"{BROKERS[name]}:10911",),
                nameserver=f"{NAMESERVER}:9876",
                store="/store",
                segment_mib=1,
                disk_reserve_mib=0,
                disk_used_percent_max=100,
                insecure=True,
            )
            await Broker(config, Host.current()).start()
            await self.loop.create_future()

        return main

    async def admin(self) -> None:
        instance = Client(f"{NAMESERVER}:9876").instance()
        await instance.start()
        await create_topic(instance, TOPIC, 4)
        await instance.close()

    def consumer(self, name: str) -> Main:
        async def listen(messages: Any, context: Any) -> ConsumeOrderlyStatus:
            await asyncio.sleep(0.01)
            self.handled.extend((self.loop.now, name, bytes(message.body)) for message in messages)
            return ConsumeOrderlyStatus.SUCCESS

        async def main() -> None:
            consumer = PushConsumer("billing", nameserver=f"{NAMESERVER}:9876")
            consumer.subscribe(TOPIC)
            consumer.orderly(listen)
            async with consumer:
                await consumer.wait_closed()

        return main

    async def producer(self) -> None:
        async with Producer("shop", nameserver=f"{NAMESERVER}:9876") as producer:
            for number in range(10_000):
                body = b"%d" % number
                try:
                    await producer.send(Message(TOPIC, body, sharding_key=f"key {number % 7}"))
                    self.sent.append((self.loop.now, body))
                except LockstepError:
                    pass
                await asyncio.sleep(0.1)

    def start(self, address: str, main: Main) -> None:
        self.loop.start(self.loop.machine(address), main)

    def run(self) -> str:
        """Run two virtual minutes; return a digest of everything that happened."""
        loop, network = self.loop, self.loop.network
        machine = loop.machine
        self.start(NAMESERVER, self.nameserver)
        for name, address in BROKERS.items():
            self.start(address, self.broker(name))
        loop.run_until(1)
        self.start(ADMIN, self.admin)
        loop.run_until(2)
        for number, name in enumerate(CONSUMERS):
            machine(name).rate = 0.98 + 0.03 * number
            self.start(name, self.consumer(name))
        self.start(PRODUCER, self.producer)
        loop.run_until(10)
        loop.kill(machine(CONSUMERS[0]))
        loop.run_until(11)
        self.start(CONSUMERS[0], self.consumer(CONSUMERS[0]))
        machine(BROKERS["broker-b"]).disk.delays_s["sync"] = (0.01, 0.5)
        loop.run_until(20)
        loop.kill(machine(BROKERS["broker-a"]), power=True)
        loop.run_until(22)
        self.start(BROKERS["broker-a"], self.broker("broker-a"))
        loop.run_until(40)
        network.partition([CONSUMERS[1]], BROKERS.values())
        loop.run_until(50)
        network.heal()
        machine(CONSUMERS[0]).wall_offset_s = -3600
        loop.pause(machine(CONSUMERS[0]))
        loop.run_until(60)
        loop.resume(machine(CONSUMERS[0]))
        loop.kill(machine(NAMESERVER))
        loop.run_until(65)
        self.start(NAMESERVER, self.nameserver)
        network.reset(network.between(PRODUCER, BROKERS["broker-b"])[0])
        loop.run_until(120)
        reported = hashlib.blake2b(repr((loop.digest(), loop.steps, self.handled, self.sent)).encode(), digest_size=16).hexdigest()
        loop.close()
        return reported


if __name__ == "__main__":
    logging.getLogger("lockstep").setLevel(logging.CRITICAL)
    print(SimRun(int(sys.argv[1])).run())
