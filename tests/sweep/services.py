"""The server processes, nameservers and brokers, and the programs that create and alter topics."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.broker.office.standing import Tenure
from lockstep.broker.store import StoreConfig
from lockstep.broker.witness.app import Witness
from lockstep.broker.witness.config import WitnessConfig
from lockstep.client.client import Client
from lockstep.client.topics import create_topic
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.connections.dial import call
from lockstep.runtime.host import Host
from lockstep.runtime.security.server_security import ServerSecurity
from lockstep.testing.simulated import BROKER_PORT, NAMESERVER_PORT, SimServer
from sweep.events.universe import BrokerOpened, Fault
from sweep.settings import TOPIC, Setting
from sweep.universe import WITNESS_PORT, Main, Universe

STORE = "/store"


@dataclass(frozen=True, kw_only=True)
class SmallBrokerConfig(BrokerConfig):
    """The configuration of a broker with small log files, since a universe is short."""

    setting: Setting

    def store_config(self) -> StoreConfig:
        setting = self.setting
        return replace(
            super().store_config(),
            segment_bytes=setting.segment_bytes,
            flush_interval_ms=setting.flush_interval_ms,
            snapshot_interval_ms=setting.snapshot_interval_ms,
            log_bytes_max=setting.log_bytes_max,
            disk_reserve_bytes=setting.reserve_bytes,
            tail_bytes=min(setting.tail_bytes, setting.segment_bytes),
            queue_tail_bytes=setting.queue_tail_bytes,
            state_bytes_max=setting.state_bytes,
            queue_file_entries=200,
        )


def make_nameserver(universe: Universe, address: str) -> SimServer:
    failed, exited = universe.server_failed, universe.exited
    machine = universe.machine(address)
    config = NameserverConfig(listen=(f"{address}:{NAMESERVER_PORT}",), insecure=True)

    def make() -> Nameserver:
        return Nameserver(config, Host.current(), security=None if universe.access is None else universe.access.server())

    return SimServer(universe.loop, address, machine, NAMESERVER_PORT, make, failed=failed, exited=exited)


def make_witness(universe: Universe, address: str) -> SimServer:
    config = WitnessConfig(listen=(f"{address}:{WITNESS_PORT}",), store="/witness", insecure=True)
    parts = universe.loop, address, universe.machine(address), WITNESS_PORT, lambda: Witness(config, Host.current())
    return SimServer(*parts, failed=universe.server_failed, exited=universe.exited)


class ObservedBroker(Broker):
    """A broker that reports each time when it has opened as a master: a replica that is promoted does so long after its start."""

    def __init__(self, config: BrokerConfig, security: ServerSecurity | None, opened: Callable[[Broker], None]) -> None:
        super().__init__(config, Host.current(), security=security)
        self._opened = opened

    async def _start_master(self, tenure: Tenure | None = None) -> None:
        await super()._start_master(tenure)
        self._opened(self)


def make_broker(universe: Universe, name: str, address: str) -> SimServer:
    """Return the broker `name` for the machine at `address`. It starts as a replica where another machine is its master."""
    setting = universe.setting
    opened: list[Broker] = []

    def make() -> Broker:
        universe.exit_codes.pop(address, None)
        config = SmallBrokerConfig(
            setting=setting,
            replica_of=universe.master_of(name, address),
            ha=universe.register_url,
            name=name,
            listen=(f"{address}:{BROKER_PORT}",),
            nameserver=universe.nameserver,
            auto_create_topics=setting.auto_create,
            topics_max=setting.topics_max,
            store=STORE,
            disk_used_percent_max=100,
            insecure=True,
            flush=universe.flush,  # type: ignore[arg-type]
            disconnect_grace_ms=universe.grace_ms,
            session_timeout_ms=setting.session_timeout_ms,
            transaction_check_ms=2_000,
        )
        security = None if universe.access is None else universe.access.server(universe.security(name))
        opened[:] = [ObservedBroker(config, security, lambda broker: universe.broker_opened(broker, opened_event(universe, broker)))]
        return opened[0]

    def started() -> None:
        if universe.copies_watch is not None and opened[0].is_replica:
            universe.copies_watch.replica_started(address, universe.origin())

    def exited(code: int) -> None:
        universe.broker_ended(opened[0])
        universe.exited(code)

    failed, machine = universe.server_failed, universe.machine(address)
    return SimServer(universe.loop, name, machine, BROKER_PORT, make, started=started, failed=failed, exited=exited)


def opened_event(universe: Universe, broker: Broker) -> BrokerOpened:
    config, place = broker.config, universe.origin()
    return BrokerOpened(
        *place,
        broker=config.name,
        term=broker.term,
        flush=config.flush,
        flush_interval_ms=universe.setting.flush_interval_ms,
        grace_ms=config.disconnect_grace_ms,
        session_timeout_ms=config.coordination().session_timeout_ms,
        removes_nothing=universe.setting.log_bytes_max is None,
    )


def creator_main(universe: Universe, queues: int) -> Main:
    """Create the topic as soon as every broker is registered."""

    async def main(stop: asyncio.Event) -> int:
        instance = Client(universe.cluster, host=Host.current()).instance()
        while not stop.is_set():
            try:
                await instance.start()
                if len(await instance.cluster.brokers()) == len(universe.brokers):
                    layout = await create_topic(instance, TOPIC, queues)
                    for topic in universe.setting.topics[1:]:
                        await create_topic(instance, topic, queues)
                    if layout.entries[0].read_queue_count != queues:
                        universe.record_reached("two creators of one topic")
                    break
            except LockstepError:
                pass
            await asyncio.sleep(0.2)
        await instance.close()
        return 0

    return main


def alter_main(universe: Universe) -> Main:
    """Add a queue on one broker, through the first broker that accepts the layout."""
    random = universe.random

    async def main(stop: asyncio.Event) -> int:
        known = [layout for broker in universe.open_brokers() if (layout := broker.state.layouts.get(TOPIC)) is not None]
        if not known:
            return 0
        newest = max(known, key=lambda layout: layout.version)
        counter = newest.version.counter + 1
        name = random.choice(sorted(universe.brokers))
        layout = TopicLayout(TOPIC, LayoutVersion(counter, random.getrandbits(32)), (*newest.entries, LayoutEntry(name, 1, 1, counter)))
        header = to_plain(CreateTopicHeader(TOPIC, 1, 1))
        for broker, address in universe.brokers.items():
            try:
                response = await call(
                    Host.current(),
                    f"{address}:{BROKER_PORT}",
                    RequestCode.UPDATE_AND_CREATE_TOPIC,
                    header,
                    encode_body(layout),
                    security=universe.security(),
                    timeout_ms=3_000,
                )
            except LockstepError:
                continue
            if response.code == ResponseCode.SUCCESS:
                universe.history.append(Fault(*universe.origin(), "altered", broker, f"layout {counter} adds a queue on {name}"))
                break
        return 0

    return main
