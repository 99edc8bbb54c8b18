"""The disk of a simulated machine: slow operations, a kill at the n-th operation, used space."""

import asyncio
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.runtime.host import Host
from lockstep.testing.simulation import SimFiles, SimLoop

SLOW_S = 2.0


def slow_machine(sim: SimLoop) -> SimFiles:
    machine = sim.machine("10.0.0.11")
    machine.disk.delays_s["sync"] = (SLOW_S, SLOW_S)
    machine.thread_delay_s = (0.0, 0.0)
    return machine.disk


def test_slow_operation_in_the_loop_blocks_only_its_process(sim: SimLoop) -> None:
    slow_machine(sim)
    seen: list[tuple[str, float]] = []

    async def main() -> None:
        sim.call_later(0.5, lambda: seen.append(("timer", sim.now)))
        sim.call_soon(lambda: seen.append(("next", sim.now)))
        Host.current().files.open("/file", create=True).sync()
        seen.append(("same callback", sim.now))
        await asyncio.sleep(1)

    async def other() -> None:
        seen.append(("other", sim.now))

    sim.start(sim.machine("10.0.0.11"), main)
    sim.run_until(1)
    sim.start(sim.machine("10.0.0.12"), other)
    sim.run_until(10)
    at = dict(seen)
    assert at["same callback"] == 0.0
    assert at["other"] == pytest.approx(1.0)
    assert at["next"] == at["timer"] == pytest.approx(SLOW_S)


def test_job_of_many_operations_is_slow_only_while_the_disk_is_slow(sim: SimLoop) -> None:
    disk = slow_machine(sim)
    disk.slow_until_s = 3 * SLOW_S

    async def main() -> float:
        file = Host.current().files.open("/file", create=True)
        await Host.current().threads.run(lambda: [file.sync() for _ in range(100)])
        return sim.now

    process = sim.start(sim.machine("10.0.0.11"), main)
    sim.run_until(1_000)
    assert process.main.result() == pytest.approx(3 * SLOW_S)


def test_slow_operation_in_a_thread_delays_only_its_result(sim: SimLoop) -> None:
    slow_machine(sim)
    ticks: list[float] = []

    async def main() -> float:
        sim.call_later(1.0, lambda: ticks.append(sim.now))
        file = Host.current().files.open("/file", create=True)
        await Host.current().threads.run(file.sync)
        return sim.now

    process = sim.start(sim.machine("10.0.0.11"), main)
    sim.run_until(10)
    assert process.main.result() == pytest.approx(SLOW_S)
    assert ticks == [pytest.approx(1.0)]


def test_machine_can_be_killed_at_the_nth_operation(sim: SimLoop) -> None:
    machine = sim.machine("10.0.0.11")

    async def main() -> None:
        file = Host.current().files.open("/file", create=True)
        for number in range(10):
            file.pwritev([b"%d" % number], number)

    process = sim.start(machine, main)
    machine.disk.countdown = 4
    machine.disk.on_death = lambda: sim.kill(machine)
    sim.run_until(1)
    assert process.ended == "kill"
    assert bytes(machine.disk.names["/file"].cache) == b"012"
    assert machine.disk.countdown is None
    assert machine.disk.open("/file").pread(3, 0) == b"012"


def test_disk_rejects_operations_of_a_process_after_its_kill(sim: SimLoop) -> None:
    machine = sim.machine("10.0.0.11")
    refused: list[int | None] = []

    async def main() -> None:
        sim.kill(machine)
        try:
            Host.current().files.open("/file", create=True)
        except OSError as error:
            refused.append(error.errno)

    sim.start(machine, main)
    sim.run_until(1)
    assert refused == [errno.EBADF]
    assert not machine.disk.exists("/file")


def test_file_of_a_dead_process_raises_ebadf(sim: SimLoop) -> None:
    machine = sim.machine("10.0.0.11")
    file = machine.disk.open("/file", create=True)
    machine.disk.crash(power=False)
    with pytest.raises(OSError, match="dead process") as caught:
        file.sync()
    assert caught.value.errno == errno.EBADF


WRITES = st.lists(st.tuples(st.integers(0, 60), st.one_of(st.none(), st.binary(max_size=20), st.integers(0, 20).map(bytes))), max_size=30)


@given(WRITES, st.booleans())
def test_used_bytes_counts_file_contents_without_trailing_zeros(writes: list[tuple[int, bytes | None]], power: bool) -> None:
    files = SimFiles(1)
    file = files.open("/file", create=True)
    files.sync_directory("/")
    for at, data in writes:
        if data is None:
            file.truncate(at)
        else:
            file.pwritev([data], at)
        assert files.used_bytes() == len(bytes(files.names["/file"].cache).rstrip(b"\0"))
    files.crash(power=power)
    assert files.used_bytes() == len(bytes(files.names["/file"].cache).rstrip(b"\0"))


@pytest.mark.parametrize(("writes", "holed"), [(1, False), (64, True)])
def test_power_cut_records_files_in_which_a_kept_write_follows_a_lost_one(writes: int, holed: bool) -> None:
    """With 64 writes of one sector, kept at random, this is almost certain. A single write has no earlier one."""
    disk = SimFiles(7)
    file = disk.open("/file", create=True)
    disk.sync_directory("/")
    for number in range(writes):
        file.pwritev([b"x" * 512], number * 512)
    disk.crash(power=True)
    assert list(disk.holed) == ["/file"] * holed
    disk.crash(power=True)
    assert not disk.holed, "it tells of the last one"


def test_disk_watch_is_called_before_each_operation_and_removed_by_a_crash() -> None:
    disk = SimFiles()
    reported: list[tuple[str, str, bool]] = []
    disk.watch = lambda operation, path: reported.append((operation, path, disk.exists(path)))
    disk.open("/file", create=True).pwritev([b"x"], 0)
    disk.unlink("/file")
    assert reported == [("create", "/file", False), ("write", "/file", True), ("unlink", "/file", True)]
    disk.crash(power=False)
    assert disk.watch is None
