"""What a store is among the copies of a log: another member since it may lack what it acknowledged, until it has caught up."""

from dataclasses import replace

import pytest

from lockstep.broker.replication.copy_identity import (
    CopyIdentity,
    Role,
    begin_as_replica,
    clock_ahead_ms,
    has_copies,
    read_copy_identity,
    save_copy_identity,
    with_clock,
    with_set,
    without,
)
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import ASYNC, PATH, SYNC, SeededRandom

RANDOM = SeededRandom(1)
PLACE = "host-k:1"
KNOWN = CopyIdentity("known", Role.REPLICA, confirmed=700, cut_to=500, complete=True, address=PLACE)


def directory_with(identity: CopyIdentity | None, *, boot: tuple[str, str] | None = None, restored: bool = False) -> StoreDirectory:
    files = SimFiles()
    files.makedirs(PATH)
    directory = StoreDirectory(files, PATH)
    if identity is not None or boot is not None:
        directory.make_own()
    if identity is not None:
        save_copy_identity(directory, identity)
    if boot is not None:
        directory.mark_boot(*boot)
    if restored:
        directory.mark_restored()
    return directory


def test_new_directory_is_a_new_member_that_has_forgotten_nothing() -> None:
    directory = directory_with(None)
    found = begin_as_replica(directory, RANDOM, "boot-1", ASYNC, PLACE)
    assert (found.role, found.forgot, len(found.member)) == (Role.REPLICA, False, 16)
    assert (read_copy_identity(directory), directory.boot()) == (found, ("boot-1", "async"))


@pytest.mark.parametrize(
    ("boot", "restored", "place", "forgets"),
    [
        (("boot-1", "async"), False, PLACE, False),
        (("boot-1", "sync"), False, PLACE, False),
        (("boot-0", "sync"), False, PLACE, False),
        (("boot-0", "async"), False, PLACE, True),
        (("boot-1", "async"), True, PLACE, True),
        (("boot-0", "sync"), True, PLACE, True),
        (("boot-1", "async"), False, "host-k:2", True),
    ],
)
def test_replica_is_another_member_after_its_machine_crashed_under_async_flush_or_from_a_backup_or_elsewhere(
    boot: tuple[str, str], restored: bool, place: str, forgets: bool
) -> None:
    directory = directory_with(KNOWN, boot=boot, restored=restored)
    found = begin_as_replica(directory, RANDOM, "boot-1", SYNC, place)
    if forgets:
        assert found.member != KNOWN.member
        was = [KNOWN.member] if place == PLACE else []  # it may be a copy of that directory
        assert found == replace(KNOWN, member=found.member, complete=False, forgot=True, address=place, was=was)
    else:
        assert found == KNOWN
    assert (read_copy_identity(directory), directory.boot(), directory.is_restored) == (found, ("boot-1", "sync"), False)
    assert begin_as_replica(directory, RANDOM, "boot-1", SYNC, place) == found, "until it has caught up"


def test_old_master_becomes_another_member_without_its_set_and_its_confirmed_position() -> None:
    master = CopyIdentity("m", Role.MASTER, members={"a": "host-a"}, known={"a": "host-a"}, confirmed=9)
    found = begin_as_replica(directory_with(master, boot=("boot-1", "async")), RANDOM, "boot-1", ASYNC, PLACE)
    assert found.member != "m", "this directory may be a copy of a master's"
    assert found == CopyIdentity(found.member, Role.REPLICA, address=PLACE)


MASTER = CopyIdentity("m", Role.MASTER, members={"a": "host-a"}, registered=True, was=["earlier"], address=PLACE)


@pytest.mark.parametrize(
    ("before", "boot", "place", "keeps_id", "was", "forgot"),
    [
        (MASTER, "boot-1", PLACE, True, ["earlier"], False),
        (MASTER, "boot-0", PLACE, False, ["earlier", "m"], True),
        (MASTER, "boot-1", "host-k:2", False, [], True),
        (MASTER, "boot-0", "host-k:2", False, [], True),
        (replace(MASTER, registered=False), "boot-1", PLACE, False, [], False),
        (replace(KNOWN, complete=False), "boot-1", PLACE, True, [], False),
    ],
)
def test_copy_under_a_register_keeps_its_id_while_it_may_lack_nothing(
    before: CopyIdentity, boot: str, place: str, keeps_id: bool, was: list[str], forgot: bool
) -> None:
    """So does a replica that had no register. The ids are those of the set in the register, which has a member for the master as well."""
    found = begin_as_replica(directory_with(before, boot=("boot-1", "async")), RANDOM, boot, ASYNC, place, registered=True)
    assert ((found.member == before.member), found.was, found.forgot) == (keeps_id, was, forgot)
    assert (found.role, found.registered, found.address) == (Role.REPLICA, True, place)
    assert not found.members


def test_forgotten_replica_is_known_until_it_has_left_the_set() -> None:
    identity = with_set(CopyIdentity("m", Role.MASTER, known={"a": "host-a"}), {"b": "host-b"})
    assert identity.known == {"a": "host-a", "b": "host-b"}
    assert without(identity, {"a", "b"}) == replace(identity, known={"b": "host-b"})
    assert without(with_set(identity, {}), {"a", "b"}) == CopyIdentity("m", Role.MASTER)


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        (None, False),
        (CopyIdentity("m", Role.MASTER), False),
        (CopyIdentity("m", Role.MASTER, known={"a": "host-a"}), True),
        (CopyIdentity("m", Role.REPLICA), True),
    ],
)
def test_store_has_copies_if_it_is_one_or_knows_one(identity: CopyIdentity | None, expected: bool) -> None:
    assert has_copies(directory_with(identity)) is expected


@pytest.mark.parametrize(
    ("stored", "heard", "kept"), [(1_000, 1_250, 1_000), (1_000, 1_251, 1_251), (1_000, 999, 999), (1_000, None, 1_000)]
)
def test_clock_of_another_master_that_is_a_little_behind_is_stored(stored: int, heard: int | None, kept: int) -> None:
    identity = with_clock(KNOWN, "boot", stored)
    assert clock_ahead_ms(with_clock(identity, "boot", heard), "boot") == kept
