"""A full disk: sends are rejected, reads and commits continue, sends resume when space is free; a failed write ends the process.

The disk is a tmpfs of its own, which only root can mount. If that is not allowed, the last test still runs: the reserve is then set
above the free space of the real disk.
"""

import asyncio
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockstep.client import Message, Producer, QueueUnavailableError
from lockstep.protocol.bodies import LockVerdict
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import ServiceNotAvailableError, TransportError
from support.background import Background, background
from support.http import fetch
from support.native import Member, Native, Stream, native
from support.processes import LIMIT_S, run_program
from support.small_disk import DISK_MIB, MIB, RESERVE_BYTES, fill_disk

pytestmark = pytest.mark.e2e

BODY = bytes(64 * 1024)


def command(store: Path, *options: str) -> tuple[str, ...]:
    """Retention is switched off."""
    return "lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(store), "--disk-used-percent-max", "100", *options


@contextmanager
def serving(folder: Path, store: Path, *options: str) -> Iterator[tuple[Background, str]]:
    """Start a broker; return it and its address."""
    with background(folder, "broker", "-m", *command(store, *options), ready="broker.started") as broker:
        yield broker, broker.started("broker.started")["address"]


async def send_until_refused(client: Native, stream: Stream) -> tuple[int, str]:
    """Return (frames stored, the text of the rejection)."""
    count = 0
    while True:
        assert count * len(BODY) < DISK_MIB * MIB, "the disk never ran full"
        response = await client.send_request(RequestCode.SEND_RECORDS, *stream.frame(BODY))
        if response.code != ResponseCode.SUCCESS:
            stream.withdraw()
            assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
            return count, response.remark or ""
        count += 1


async def test_full_disk_rejects_sends_while_reads_and_commits_continue_until_space_is_free(tmp_path: Path, disk: Path) -> None:
    with serving(tmp_path, disk / "store", "--segment-mib", "4", "--admin-listen", "127.0.0.1:0") as (broker, address):
        admin = broker.started("broker.started")["admin"]
        async with native(address) as client:
            await client.create("orders")
            member = Member(client, "orders")
            await member.join()
            epoch = (await member.lock()).epoch
            stream = Stream("orders")
            assert (await fetch(admin, "/readyz"))[0] == 200
            count, words = await send_until_refused(client, stream)
            status, page = await fetch(admin, "/readyz")
            assert (status, f"the reserve of {RESERVE_BYTES} bytes would be left" in page) == (503, True), "at once"
            assert re.search(r"^rocketmq_broker_permission\S* 4", (await fetch(admin, "/metrics"))[1], re.MULTILINE)
            (filled,) = broker.find("disk.filled")
            assert f"the reserve of {RESERVE_BYTES} bytes would be left" in filled["reason"]
            assert count > 100
            free = int(words.partition(" has ")[2].split()[0])
            assert f"{disk / 'store'} has {free} bytes free" in words
            assert f"less than {RESERVE_BYTES} bytes" in words
            assert 0 < free - RESERVE_BYTES < 2 * len(BODY)
            assert "Free some space" in words

            assert len(await client.everything("orders")) == count
            for offset in range(1, count + 1):
                assert (await member.commit(epoch, offset)).verdict is LockVerdict.OK
            assert (await member.status()).committed_offset == count
        assert broker.stop() == 0
    with serving(tmp_path, disk / "store") as (broker, address):
        async with native(address) as client:
            assert len(await client.everything("orders")) == count
            assert (await client.send("orders", BODY)).code == ResponseCode.SERVICE_NOT_AVAILABLE
            (disk / "ballast").unlink()
            while (response := await client.send_request(RequestCode.SEND_RECORDS, *stream.frame(BODY))).code != ResponseCode.SUCCESS:
                assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
                stream.withdraw()
            assert response.fields["queueOffset"] == count
        assert broker.stop() == 0


async def test_producer_gets_the_reason_and_continues_when_space_is_free(tmp_path: Path, disk: Path) -> None:
    routes = ("-m", "lockstep.nameserver", "--listen", "127.0.0.1:0")
    with background(tmp_path, "nameserver", *routes, ready="nameserver.started") as nameserver:
        where = nameserver.started("nameserver.started")["address"]
        with serving(tmp_path, disk / "store", "--nameserver", where) as (_, address):
            async with native(address) as client:
                await client.create("orders")
                count, _ = await send_until_refused(client, Stream("orders"))
                async with Producer("shop", nameserver=where, compress_over_bytes=None) as producer:
                    with pytest.raises(ServiceNotAvailableError, match=f"less than {RESERVE_BYTES} bytes"):
                        await producer.send(Message("orders", BODY), timeout_ms=300)
                    with pytest.raises(QueueUnavailableError, match=f"less than {RESERVE_BYTES} bytes.*not stored"):
                        await producer.send(Message("orders", BODY, sharding_key="k"), timeout_ms=300)
                    waiting = asyncio.ensure_future(producer.send(Message("orders", BODY, sharding_key="k")))
                    assert len(await client.everything("orders")) == count
                    assert not waiting.done()
                    (disk / "ballast").unlink()
                    assert (await waiting).queue_offset == count


@pytest.mark.parametrize("what", ["send", "commit"])
async def test_failed_write_ends_the_broker_without_a_response_and_loses_nothing(tmp_path: Path, disk: Path, what: str) -> None:
    """Another program fills the disk between two checks, or the reserve is used up: exit 3, one line, and the next start has everything."""
    stream = Stream("orders")
    with serving(tmp_path, disk / "store", "--disk-reserve-mib", "0") as (broker, address):
        async with native(address) as client:
            await client.create("orders")
            member = Member(client, "orders")
            await member.join()
            epoch = (await member.lock()).epoch
            for _ in range(20):
                await client.done(RequestCode.SEND_RECORDS, *stream.frame(BODY))
            await member.commit(epoch, 7)
            fill_disk(disk)
            write = sends_until_it_ends(client, stream) if what == "send" else locks_until_it_ends(member)
            with pytest.raises(TransportError):
                await write
        assert broker.process.wait(LIMIT_S) == 3
        complaint = broker.complained.read_text()
        assert complaint.count("\n") == 1, complaint
        assert "No space left on device" in complaint
        assert str(disk / "store") in complaint
    ended = run_program(*command(disk / "store"))
    assert (ended.returncode, ended.stderr.count("\n")) == (3, 1), ended.stderr
    assert "No space left on device" in ended.stderr
    (disk / "filler").unlink()
    with serving(tmp_path, disk / "store") as (_, address):
        async with native(address) as client:
            assert await client.everything("orders") == [BODY] * (stream.next - (what == "send"))
            await member.join(client)
            assert (await member.status()).committed_offset == 7


async def sends_until_it_ends(client: Native, stream: Stream) -> None:
    """The rest of the log's last page has space for a few more."""
    while True:
        await client.done(RequestCode.SEND_RECORDS, *stream.frame(BODY))


async def locks_until_it_ends(member: Member) -> None:
    """A new grant is a state record."""
    while True:
        await member.lock()


async def test_reserve_above_the_free_space_rejects_only_sends(tmp_path: Path) -> None:
    """The same rule on the real disk, so that it is tested without root too. Half the reserve is free: new messages are accepted."""
    stream = Stream("orders")
    with serving(tmp_path, tmp_path / "store") as (_, address):
        async with native(address) as client:
            await client.create("orders")
            await client.done(RequestCode.SEND_RECORDS, *stream.frame(b"one"))
    above_mib = shutil.disk_usage(tmp_path).free * 3 // 2 // MIB
    with serving(tmp_path, tmp_path / "store", "--disk-reserve-mib", str(above_mib)) as (_, address):
        async with native(address) as client:
            code, words = await client.refused(RequestCode.SEND_RECORDS, *stream.frame(b"two"))
            assert code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert f"less than {above_mib * MIB} bytes" in words
            repeat = await client.done(RequestCode.SEND_RECORDS, *Stream("orders").frame(b"one"))
            assert repeat.fields["queueOffset"] == 0
            assert await client.everything("orders") == [b"one"]
            member = Member(client, "orders")
            await member.join()
            assert (await member.commit((await member.lock()).epoch, 1)).verdict is LockVerdict.OK
            await client.create("bills")
    with serving(tmp_path, tmp_path / "store") as (_, address):
        async with native(address) as client:
            again = Stream("orders")
            again.frame(b"one")
            await client.done(RequestCode.SEND_RECORDS, *again.frame(b"two"))
            assert await client.everything("orders") == [b"one", b"two"]
