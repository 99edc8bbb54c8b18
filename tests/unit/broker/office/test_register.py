"""The stored form of an entry: what is written is read again, and anything else is refused by what is wrong with it."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.office.register import ENTRY_BYTES_MAX, FORMAT, Entry, RegisterEntryError
from lockstep.runtime.daemon import exit_code_of
from support.registers import MEMBERS, entry

members = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    in_sync = draw(st.lists(members, min_size=1, max_size=5, unique=True))
    known = [*in_sync, *draw(st.lists(members, max_size=3))]
    return Entry(
        log=draw(st.text(min_size=1, max_size=64)),
        term=draw(st.integers(1, (1 << 63) - 1)),
        master=draw(st.sampled_from(in_sync)),
        in_sync=tuple(in_sync),
        replicas={member: draw(st.text(min_size=1, max_size=60)) for member in known},
        write=f"{draw(members)}-{draw(st.integers(0, 10**18))}",
        why=draw(st.sampled_from(["elected", "shrunk", "grown", "switched", "unclean", "roll_call", "created"])),
        assumed_loss=draw(st.booleans()),
    )


@given(entries())
def test_entry_that_was_stored_is_read_again(given: Entry) -> None:
    stored = given.to_json()
    assert len(stored) <= ENTRY_BYTES_MAX
    assert Entry.from_json(stored) == given


@given(st.one_of(st.binary(max_size=200), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(json.dumps)))
def test_rubbish_is_refused(rubbish: bytes | str) -> None:
    with pytest.raises(RegisterEntryError):
        Entry.from_json(rubbish if isinstance(rubbish, bytes) else rubbish.encode())


@given(entries(), st.sampled_from(["format", *asdict(entry())]), st.none() | st.integers(max_value=0) | st.just([[]]) | st.just({"a": 1}))
def test_entry_with_a_wrong_value_is_refused_by_the_name_of_its_field(given: Entry, name: str, wrong: Any) -> None:
    plain = json.loads(given.to_json())
    with pytest.raises(RegisterEntryError, match=name):
        Entry.from_json(json.dumps(plain | {name: wrong}).encode())
    del plain[name]
    with pytest.raises(RegisterEntryError, match=name):
        Entry.from_json(json.dumps(plain).encode())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": FORMAT + 1}, "it has format 2, this version of lockstep reads format 1: start one that reads it"),
        ({"format": True}, "format true"),
        ({"more": 1}, 'unexpected field "more"'),
        ({"term": 1.0}, "term is 1.0: expected a number from 1 on"),
        ({"master": MEMBERS[0].upper() + "g"}, "master is .*: expected a member id of 16 hex digits"),
        ({"in_sync": [MEMBERS[0], MEMBERS[0]]}, "in_sync is .*: expected different member ids"),
        ({"in_sync": [MEMBERS[1]]}, f"in_sync lacks the master {MEMBERS[0]}"),
        ({"replicas": {MEMBERS[0]: "10.0.0.1:1"}}, f"in_sync has {MEMBERS[1]}, replicas has no address of it"),
        ({"replicas": {MEMBERS[0]: 5}}, "replicas is .*: expected member id → HOST:PORT"),
        ({"why": "because it rained"}, "why is"),
    ],
)
def test_entry_that_makes_no_sense_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(RegisterEntryError, match=says):
        Entry.from_json(json.dumps(json.loads(entry().to_json()) | change).encode())


def test_entry_that_nobody_could_read_is_not_stored() -> None:
    with pytest.raises(RegisterEntryError, match="this entry can't be stored: term is 0"):
        replace(entry(), term=0).to_json()
    many = {f"{number:016x}": f"10.0.0.1:{number}" for number in range(1, 400)}
    with pytest.raises(RegisterEntryError, match=r"\d+ bytes, at most 8192: it knows 399 copies .* `lockstep replica forget`"):
        replace(entry(), replicas=many).to_json()
    with pytest.raises(RegisterEntryError, match="bytes, an entry has at most 8192"):
        Entry.from_json(b" " * (ENTRY_BYTES_MAX + 1))


def test_entry_that_an_operator_has_to_look_at_ends_a_process_with_4() -> None:
    assert exit_code_of(RegisterEntryError("")) == 4
