"""The prepared next log file: removed or replaced by another program, or impossible to create."""

import errno

import pytest

from lockstep.protocol.errors import ServiceNotAvailableError
from lockstep.testing.simulation.disk import Fault, SimFiles
from support.store_kit import SYNC, all_bodies, append, confirmed, kill, open_store

NEXT = "/store/lockstep/next-log-file"


@pytest.mark.parametrize("upkeep", [False, True])
@pytest.mark.parametrize("how", ["removed", "replaced"])
@pytest.mark.parametrize("power", [False, True])
async def test_next_log_file_removed_or_replaced_by_another_program_loses_no_message(how: str, upkeep: bool, power: bool) -> None:
    files = SimFiles()
    failed: list[BaseException] = []
    store = await open_store(files, flush=SYNC)
    store.writer.on_fatal = failed.append
    bodies = [b"%d" % number * 10_000 for number in range(5)]
    append(store, bodies[0])
    await confirmed(store)
    files.names.pop(NEXT)
    if how == "replaced":
        files.open("/store/other", create=True).pwritev([b"another program's"], 0)
        files.rename("/store/other", NEXT)
    for body in bodies[1:]:
        if upkeep:
            store.upkeep()
        append(store, body)
        await confirmed(store)
    assert failed == []
    await kill(store, files, power=power)
    store = await open_store(files, flush=SYNC)
    assert await all_bodies(store) == bodies
    await store.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_without_a_free_inode_sends_are_rejected_while_state_records_have_room(number: int) -> None:
    files = SimFiles()
    failed: list[BaseException] = []
    store = await open_store(files, flush=SYNC)
    store.writer.on_fatal = failed.append
    append(store, b"first" * 2_000)
    files.names.pop(NEXT)
    files.faults = [Fault("create", "", number, count=1_000)]
    store.upkeep()
    refusals = []
    for _ in range(40):
        try:
            append(store, b"x" * 100)
        except ServiceNotAvailableError as error:
            refusals.append(str(error))
    assert "inodes" in refusals[0]
    shown = store.disk_status().refusal
    assert shown is not None
    assert refusals[0].endswith(shown)
    store.append_state(b"state")
    await confirmed(store)
    assert failed == []
    files.faults = []
    append(store, b"second" * 2_000)
    await confirmed(store)
    assert store.disk_status().refusal is None
    await store.close()
    store = await open_store(files)
    assert (await all_bodies(store))[-1] == b"second" * 2_000
    await store.close()
