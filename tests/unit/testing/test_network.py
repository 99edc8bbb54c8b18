"""The simulated network: bytes, connections, faults, errors of callers."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.testing.simulation import Process, SimLoop
from lockstep.testing.simulation.transport import SOCKET_BYTES

CLIENT, SERVER, PORT = "10.0.1.1", "10.0.0.11", 7000


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


@dataclass(eq=False)
class Side(asyncio.Protocol):
    """One end of a connection. It records the bytes received and the end."""

    received: bytearray = field(default_factory=bytearray)
    at: list[float] = field(default_factory=list)
    transport: asyncio.Transport | None = None
    error: Exception | None = None
    ends: int = 0
    eofs: int = 0
    reads: bool = True
    paused: int = 0
    resumed: int = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if not self.reads:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.at.append(asyncio.get_running_loop().now)  # type: ignore[attr-defined]

    def eof_received(self) -> None:
        self.eofs += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.ends += 1

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.resumed += 1

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)


class Pair:
    """A client connected to a server, each on a machine of its own."""

    def __init__(self, sim: SimLoop, *, server_reads: bool = True) -> None:
        self.sim = sim
        self.client, self.server = Side(), Side(reads=server_reads)
        self.server_process = sim.start(sim.machine(SERVER), self._serve)
        sim.run_until(sim.now + 0.1)
        self.client_process = sim.start(sim.machine(CLIENT), self._dial)
        sim.run_until(sim.now + 10)  # one segment in a thousand is late, by up to 3.2 s
        assert self.client.transport is not None
        assert self.server.transport is not None

    async def _serve(self) -> None:
        await self.sim.create_server(lambda: self.server, SERVER, PORT)
        await forever()

    async def _dial(self) -> None:
        await self.sim.create_connection(lambda: self.client, SERVER, PORT)
        await forever()

    def run(self, seconds: float) -> None:
        self.sim.run_until(self.sim.now + seconds)

    def client_writes(self, data: bytes) -> None:
        self.sim.at(self.sim.now, self.client.write, data, process=self.client_process)
        self.run(0)

    def server_writes(self, data: bytes) -> None:
        self.sim.at(self.sim.now, self.server.write, data, process=self.server_process)
        self.run(0)


def dial(sim: SimLoop, address: str = SERVER, port: int = PORT, machine: str = CLIENT) -> list[object]:
    """Connect once. Return a list that gets the result and the duration (s)."""
    outcome: list[object] = []

    async def main() -> None:
        began = sim.now
        try:
            await sim.create_connection(Side, address, port)
            outcome.append("connected")
        except OSError as error:
            outcome.append(error.errno)
        outcome.append(sim.now - began)
        await forever()

    sim.start(sim.machine(machine), main)
    return outcome


# ------------------------------------------------------------------------------------------------------------------ streams


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), writes=st.lists(st.binary(min_size=1, max_size=300), max_size=20), late=st.floats(0, 1))
def test_stream_arrives_complete_and_in_order_in_any_segmentation(seed: int, writes: list[bytes], late: float) -> None:
    sim = SimLoop(seed)
    pair = Pair(sim)
    sim.network.chop, sim.network.late_chance = 0.7, late
    for data in writes:
        pair.client_writes(data)
        pair.server_writes(data)
    pair.run(100)
    assert pair.server.received == pair.client.received == b"".join(writes)
    sim.close()


def test_segment_is_delayed_by_the_latency_and_part_of_the_jitter(sim: SimLoop) -> None:
    pair = Pair(sim)
    sim.network.latency_s, sim.network.jitter_s, sim.network.late_chance = 0.1, 0.2, 0
    began = sim.now
    pair.client_writes(b"x")
    pair.run(1)
    assert 0.1 <= pair.server.at[0] - began <= 0.3


def test_late_segment_delays_later_ones(sim: SimLoop) -> None:
    pair = Pair(sim)
    sim.network.late_chance = 1
    began = sim.now
    pair.client_writes(b"late")
    sim.network.late_chance = 0
    pair.client_writes(b" next")
    pair.run(10)
    assert pair.server.received == b"late next"
    assert pair.server.at[0] - began >= 0.2


def test_slow_link_delays_one_direction(sim: SimLoop) -> None:
    pair = Pair(sim)
    sim.network.slow[CLIENT, SERVER] = 100.0
    began = sim.now
    pair.client_writes(b"x")
    pair.server_writes(b"y")
    pair.run(101)
    assert pair.client.at[0] - began < 1
    assert pair.server.at[0] - began > 1


def test_close_sends_unsent_bytes_first(sim: SimLoop) -> None:
    pair = Pair(sim)
    pair.client_writes(b"x" * 3_000_000)
    assert pair.client.transport is not None
    sim.at(sim.now, pair.client.transport.close, process=pair.client_process)
    pair.run(10)
    assert len(pair.server.received) == 3_000_000
    assert pair.server.eofs == 1
    assert (pair.client.ends, pair.server.ends, pair.client.error) == (1, 1, None)
    assert not sim.network.connections


def test_peer_that_does_not_read_pauses_the_writer(sim: SimLoop) -> None:
    pair = Pair(sim, server_reads=False)
    pair.client_writes(b"x" * SOCKET_BYTES)
    assert pair.client.paused == 0
    pair.client_writes(b"x" * 70_000)
    assert pair.client.paused == 1
    pair.run(60)
    assert pair.client.resumed == 0
    assert pair.server.transport is not None
    sim.at(sim.now, pair.server.transport.resume_reading, process=pair.server_process)
    pair.run(1)
    assert pair.client.resumed == 1
    assert len(pair.server.received) == SOCKET_BYTES + 70_000


def test_protocol_that_raises_loses_its_connection() -> None:
    sim = SimLoop(1)
    sim.set_exception_handler(lambda loop, context: None)
    pair = Pair(sim)
    pair.server.data_received = lambda data: 1 // 0  # type: ignore[method-assign, assignment, return-value]
    pair.client_writes(b"x")
    pair.run(5)
    assert pair.server.ends == pair.client.ends == 1
    assert [type(error.error) for error in sim.errors] == [ZeroDivisionError]
    sim.close()


# ------------------------------------------------------------------------------------------------------------------- faults


def test_block_holds_one_direction_and_held_bytes_arrive_after_it(sim: SimLoop) -> None:
    pair = Pair(sim)
    sim.network.block(CLIENT, SERVER)
    pair.client_writes(b"up")
    pair.server_writes(b"down")
    pair.run(30)
    assert (pair.server.received, pair.client.received) == (b"", b"down")
    pair.client_writes(b" and more")
    sim.network.heal()
    pair.run(60)
    assert pair.server.received == b"up and more"


def test_heal_ends_the_given_blocks(sim: SimLoop) -> None:
    sim.network.partition([CLIENT], [SERVER, "10.0.0.12"])
    sim.network.heal([(CLIENT, SERVER)])
    assert sim.network.blocked == ((SERVER, CLIENT), (CLIENT, "10.0.0.12"), ("10.0.0.12", CLIENT))


@pytest.mark.parametrize(("lasts_s", "given_up"), [(890, False), (910, True)])
def test_undeliverable_bytes_time_out_the_connection(sim: SimLoop, lasts_s: float, given_up: bool) -> None:
    pair = Pair(sim)
    sim.network.block(CLIENT, SERVER)
    pair.client_writes(b"x")
    pair.run(lasts_s)
    assert (pair.client.ends == 1) is given_up
    if given_up:
        assert isinstance(pair.client.error, OSError)
        assert pair.client.error.errno == errno.ETIMEDOUT
    else:
        sim.network.heal()
        pair.run(70)
        assert pair.server.received == b"x"
        pair.run(1000)
        assert pair.client.ends == 0


def test_timeout_of_undeliverable_bytes_restarts_with_each_block(sim: SimLoop) -> None:
    pair = Pair(sim)
    sim.network.block(CLIENT, SERVER)
    pair.client_writes(b"x")
    pair.run(100)
    sim.network.heal()
    pair.run(100)
    sim.network.block(CLIENT, SERVER)
    pair.client_writes(b"y")
    pair.run(890)
    assert (pair.server.received, pair.client.ends) == (b"x", 0)
    pair.run(20)
    assert pair.client.ends == 1


def test_reset_delivers_some_bytes_and_both_ends_get_an_error() -> None:
    lengths = set()
    for seed in range(30):
        sim = SimLoop(seed)
        pair = Pair(sim)
        pair.client_writes(b"0123456789")
        [connection] = sim.network.between(CLIENT, SERVER)
        sim.network.reset(connection)
        pair.run(10)
        assert b"0123456789".startswith(pair.server.received)
        lengths.add(len(pair.server.received))
        assert (pair.client.ends, pair.server.ends) == (1, 1)
        assert isinstance(pair.client.error, ConnectionResetError)
        assert isinstance(pair.server.error, ConnectionResetError)
        sim.close()
    assert len(lengths) > 4


def test_reset_does_not_pass_a_block(sim: SimLoop) -> None:
    pair = Pair(sim)
    sim.network.block(CLIENT, SERVER)
    assert pair.client.transport is not None
    sim.at(sim.now, pair.client.transport.abort, process=pair.client_process)
    pair.run(60)
    assert (pair.client.ends, pair.server.ends) == (1, 0)
    sim.network.heal()
    pair.run(60)
    assert pair.server.ends == 1


def test_silent_connection_drops_bytes_in_both_directions(sim: SimLoop) -> None:
    pair = Pair(sim)
    [connection] = sim.network.between(CLIENT)
    sim.network.silence(connection)
    pair.client_writes(b"x")
    pair.server_writes(b"y")
    pair.run(800)
    assert (pair.client.received, pair.server.received, pair.client.ends, pair.server.ends) == (b"", b"", 0, 0)
    pair.run(200)
    assert (pair.client.ends, pair.server.ends) == (1, 1)


def test_connections_of_a_killed_process_are_closed_or_reset() -> None:
    ends = set()
    for seed in range(30):
        sim = SimLoop(seed)
        pair = Pair(sim)
        pair.server_writes(b"0123456789")
        sim.kill(sim.machine(SERVER))
        pair.run(10)
        assert (pair.client.ends, pair.server.ends) == (1, 0)
        assert b"0123456789".startswith(pair.client.received)
        ends.add((type(pair.client.error), len(pair.client.received) == 10))
        sim.close()
    assert {(type(None), True), (ConnectionResetError, False)} <= ends


def test_peer_of_a_power_cut_stays_open_until_it_sends_to_the_restarted_machine(sim: SimLoop) -> None:
    pair = Pair(sim)
    sim.kill(sim.machine(SERVER), power=True)
    pair.run(100)
    assert pair.client.ends == 0
    pair.client_writes(b"into silence")
    pair.run(100)
    assert pair.client.ends == 0
    sim.start(sim.machine(SERVER), forever)
    pair.run(1)
    assert isinstance(pair.client.error, ConnectionResetError)
    assert pair.server.received == b""


def test_bytes_in_flight_at_a_power_cut_time_out(sim: SimLoop) -> None:
    pair = Pair(sim)
    pair.client_writes(b"in flight")
    sim.kill(sim.machine(SERVER), power=True)
    pair.run(899)
    assert pair.client.ends == 0
    pair.run(5)
    assert pair.client.ends == 1


def test_bytes_accepted_by_the_kernel_before_a_power_cut_cause_no_error(sim: SimLoop) -> None:
    pair = Pair(sim)
    sim.pause(sim.machine(SERVER))
    pair.client_writes(b"in the queue")
    pair.run(10)
    sim.kill(sim.machine(SERVER), power=True)
    pair.run(10_000)
    assert pair.client.ends == 0
    pair.client_writes(b"more")
    pair.run(910)
    assert pair.client.ends == 1


def test_idle_peer_of_a_power_cut_gets_an_error_when_it_sends_to_the_restarted_machine(sim: SimLoop) -> None:
    pair = Pair(sim)
    sim.kill(sim.machine(SERVER), power=True)
    sim.start(sim.machine(SERVER), forever)
    pair.run(100)
    assert pair.client.ends == 0
    pair.client_writes(b"x")
    pair.run(1)
    assert pair.client.ends == 1


def test_paused_process_accepts_bytes_and_connections_and_handles_them_later(sim: SimLoop) -> None:
    pair = Pair(sim)
    sim.pause(sim.machine(SERVER))
    pair.client_writes(b"x")
    outcome = dial(sim, machine="10.0.1.2")
    pair.run(100)
    assert outcome[0] == "connected"
    assert pair.server.received == b""
    sim.resume(sim.machine(SERVER))
    pair.run(1)
    assert pair.server.received == b"x"


# ------------------------------------------------------------------------------------------------------------------ connecting


def test_port_without_a_listener_refuses_connections(sim: SimLoop) -> None:
    sim.machine(SERVER)
    outcome = dial(sim)
    sim.run_until(1)
    assert outcome[0] == errno.ECONNREFUSED


def test_bound_port_that_is_not_served_refuses_connections(sim: SimLoop) -> None:
    async def main() -> None:
        await sim.create_server(Side, SERVER, PORT, start_serving=False)
        await forever()

    sim.start(sim.machine(SERVER), main)
    outcome = dial(sim)
    sim.run_until(1)
    assert outcome[0] == errno.ECONNREFUSED


Break = Callable[[SimLoop], None]
UNREACHABLE: dict[str, Break] = {
    "off": lambda sim: sim.kill(sim.machine(SERVER), power=True),
    "blocked to": lambda sim: sim.network.block(CLIENT, SERVER),
    "blocked from": lambda sim: sim.network.block(SERVER, CLIENT),
}


@pytest.mark.parametrize("why", UNREACHABLE)
def test_connect_to_an_unreachable_machine_times_out(sim: SimLoop, why: str) -> None:
    Pair(sim)
    sim.kill(sim.machine(CLIENT))
    UNREACHABLE[why](sim)
    outcome = dial(sim)
    sim.run_until(sim.now + 126)
    assert not outcome
    sim.run_until(sim.now + 5)
    assert outcome == [errno.ETIMEDOUT, pytest.approx(128, abs=2)]


async def bind_twice(sim: SimLoop) -> None:
    await sim.create_server(Side, SERVER, PORT)
    await sim.create_server(Side, SERVER, PORT)


async def bind_elsewhere(sim: SimLoop) -> None:
    sim.machine("10.0.0.12")
    await sim.create_server(Side, "10.0.0.12", PORT)


@pytest.mark.parametrize(("bind", "number"), [(bind_twice, errno.EADDRINUSE), (bind_elsewhere, errno.EADDRNOTAVAIL)])
def test_bind_to_a_used_port_or_foreign_address_raises(sim: SimLoop, bind: Callable[[SimLoop], Awaitable[None]], number: int) -> None:
    async def main() -> int | None:
        with pytest.raises(OSError) as caught:  # noqa: PT011
            await bind(sim)
        return caught.value.errno

    process = sim.start(sim.machine(SERVER), main)
    sim.run_until(1)
    assert process.main.result() == number


def test_port_is_free_after_its_process_was_killed(sim: SimLoop) -> None:
    Pair(sim)
    sim.kill(sim.machine(SERVER))
    sim.kill(sim.machine(CLIENT))
    Pair(sim)


def test_port_0_selects_a_free_port(sim: SimLoop) -> None:
    async def main() -> list[int]:
        servers = [await sim.create_server(Side, "0.0.0.0", 0) for _ in range(2)]
        return [server.sockets[0].getsockname()[1] for server in servers]

    process = sim.start(sim.machine(SERVER), main)
    sim.run_until(1)
    first, second = process.main.result()
    assert first != second


def test_machine_has_a_socket_limit(sim: SimLoop) -> None:
    pair = Pair(sim)
    sim.machine(SERVER).sockets_max = 1
    waiting = dial(sim, machine="10.0.1.2")
    sim.machine(CLIENT).sockets_max = 1
    refused = dial(sim)
    pair.run(5)
    assert refused[0] == errno.EMFILE
    assert waiting[0] == "connected"
    server = next(iter(sim.network.between("10.0.1.2"))).server
    assert server.protocol is None, "accepted beyond the limit"
    sim.kill(sim.machine(CLIENT))
    pair.run(5)
    assert server.protocol is not None


def test_localhost_is_the_machine_itself(sim: SimLoop) -> None:
    async def main() -> bytes:
        server = await asyncio.start_server(echo, "127.0.0.1", PORT)
        reader, writer = await asyncio.open_connection("localhost", PORT)
        writer.write(b"hello")
        writer.write_eof()
        response = await reader.read()
        writer.close()
        await writer.wait_closed()
        server.close()
        return response

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    process = sim.start(sim.machine(SERVER), main)
    sim.run_until(10)
    assert process.main.result() == b"hello"


# ---------------------------------------------------------------------------------------------------------------------- tap


class Recorder:
    def __init__(self) -> None:
        self.reported: list[tuple[object, ...]] = []

    def opened(self, connection: int, client: Process, server: Process, port: int) -> None:
        self.reported.append(("opened", connection, client.machine.name, server.machine.name, port))

    def sent(self, connection: int, upstream: bool, data: bytes) -> None:
        self.reported.append(("sent", connection, upstream, data))

    def delivered(self, connection: int, upstream: bool, count: int) -> None:
        self.reported.append(("delivered", connection, upstream, count))

    def cut(self, connection: int) -> None:
        self.reported.append(("cut", connection))


def test_observer_gets_every_network_event_in_order(sim: SimLoop) -> None:
    tap = Recorder()
    sim.network.observer = tap
    sim.network.chop = 0
    pair = Pair(sim)
    pair.client_writes(b"ask")
    pair.run(1)
    pair.server_writes(b"response")
    pair.run(1)
    sim.kill(sim.machine(CLIENT))
    pair.run(1)
    assert tap.reported == [
        ("opened", 1, CLIENT, SERVER, PORT),
        ("sent", 1, True, b"ask"),
        ("delivered", 1, True, 3),
        ("sent", 1, False, b"response"),
        ("delivered", 1, False, 8),
        ("cut", 1),
    ]


def test_observer_gets_the_delivered_byte_count_of_a_reset_stream() -> None:
    for seed in range(20):
        sim = SimLoop(seed)
        tap = sim.network.observer = Recorder()
        pair = Pair(sim)
        pair.client_writes(b"0123456789")
        sim.network.reset(sim.network.between(CLIENT)[0])
        pair.run(10)
        assert sum(reported[3] for reported in tap.reported if reported[0] == "delivered") == len(pair.server.received)  # type: ignore[misc]
        assert tap.reported[-1] == ("cut", 1)
        sim.close()
