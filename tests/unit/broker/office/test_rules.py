"""What a copy does with what the register says, as tables; and when it takes its master for lost."""

from dataclasses import replace

import pytest

from lockstep.broker.office.register import Entry
from lockstep.broker.office.rules import (
    ENDED_MS,
    OTHERS_MAX,
    PAUSED_MS,
    REFUSED_MS,
    Called,
    OfficeError,
    OwnCopy,
    Silence,
    Step,
    called_first,
    created,
    elected,
    first_step,
    restored,
    ruling_alone,
    with_members,
)
from lockstep.broker.office.standing import LOOKED_MS
from support.registers import MEMBERS, entry

A, B, C = MEMBERS
ADDRESS = "10.0.0.9:10911"
ENTRY = entry(7)
"""A is the master in term 7, all three are in the set."""
OWN = OwnCopy(A, "log", 7, may_create=False)


@pytest.mark.parametrize(
    ("found", "own", "expected"),
    [
        pytest.param(None, replace(OWN, may_create=True), Step.CREATE, id="no entry yet"),
        pytest.param(None, OWN, Step.WAIT, id="the entry is gone"),
        pytest.param(ENTRY, replace(OWN, log="other"), "is store log", id="another log"),
        pytest.param(ENTRY, replace(OWN, log="other", may_create=True), "is store log", id="another log, which may create none then"),
        pytest.param(ENTRY, replace(OWN, term=8), Step.WAIT, id="the register was set back"),
        pytest.param(ENTRY, replace(OWN, member=B, term=8), Step.WAIT, id="set back, at a replica"),
        pytest.param(ENTRY, OWN, Step.STAND, id="the master starts again"),
        pytest.param(ENTRY, replace(OWN, term=3), Step.STAND, id="elected, before its first record"),
        pytest.param(ENTRY, replace(OWN, member=B), Step.FOLLOW, id="a replica"),
        pytest.param(ENTRY, replace(OWN, member="f" * 16), Step.FOLLOW, id="a master that has lost something is another member"),
        pytest.param(ENTRY, OwnCopy("", "", 0, may_create=True), Step.FOLLOW, id="an empty store"),
    ],
)
def test_first_step(found: Entry | None, own: OwnCopy, expected: Step | str) -> None:
    if isinstance(expected, Step):
        verdict = first_step("broker-a", found, own)
        assert verdict.step is expected
        assert bool(verdict.why) is (expected is Step.WAIT)
    else:
        with pytest.raises(OfficeError, match=expected):
            first_step("broker-a", found, own)


def test_only_a_member_of_the_set_is_elected_and_the_set_stays() -> None:
    two = with_members(ENTRY, [A, B], dict(ENTRY.replicas))
    won = elected(two, replace(OWN, member=B), ADDRESS, 9)
    assert won is not None
    assert (won.master, won.term, won.in_sync, won.assumed_loss, won.why) == (B, 9, (A, B), False, "elected")
    assert won.replicas == {**ENTRY.replicas, B: ADDRESS}
    assert elected(two, replace(OWN, member=C), ADDRESS, 9) is None


@pytest.mark.parametrize(
    ("assumed", "term", "in_sync", "expected"),
    [(True, 6, (A,), True), (True, 7, (A,), False), (False, 6, (A,), False), (True, 6, (A, B), False)],
)
def test_loss_is_assumed_until_a_term_with_it_has_begun(assumed: bool, term: int, in_sync: tuple[str, ...], expected: bool) -> None:
    won = elected(replace(ENTRY, assumed_loss=assumed, in_sync=in_sync), replace(OWN, term=term), ADDRESS, 9)
    assert won is not None
    assert won.assumed_loss is expected


def test_who_rules_alone_is_the_set_and_assumes_a_loss() -> None:
    for before in (ENTRY, None):
        alone = ruling_alone(before, "log", C, ADDRESS, 9, "unclean")
        assert (alone.master, alone.term, alone.in_sync, alone.assumed_loss, alone.log) == (C, 9, (C,), True, "log")
        assert alone.replicas == {**({} if before is None else before.replicas), C: ADDRESS}


def test_first_entry_has_the_set_of_the_pair_before() -> None:
    first = created("log", 7, B, {A: "a:1", B: "b:1"}, assumed_loss=True)
    assert (first.master, first.in_sync, first.replicas, first.assumed_loss) == (B, (A, B), {A: "a:1", B: "b:1"}, True)


@pytest.mark.parametrize(("members", "expected"), [((B,), (A, B)), ((), (A,)), ((C, A), (A, C))])
def test_set_has_the_master_and_its_address(members: tuple[str, ...], expected: tuple[str, ...]) -> None:
    stored = with_members(ENTRY, members, {C: "c:2"})
    assert (stored.in_sync, stored.why, stored.term, stored.master) == (expected, "shrunk", 7, A)
    assert stored.replicas == {C: "c:2", A: ENTRY.replicas[A]}


def test_other_copies_can_change_without_the_set() -> None:
    stored = with_members(ENTRY, ENTRY.in_sync, {B: "b:1", C: "c:2"})
    assert stored == replace(ENTRY, replicas={B: "b:1", C: "c:2", A: ENTRY.replicas[A]})


def test_set_that_grows_says_so() -> None:
    assert with_members(replace(ENTRY, in_sync=(A,)), (B,), dict(ENTRY.replicas)).why == "grown"


def came_back(number: int, was: str, term: int, end: int) -> Called:
    return Called(f"{number:x}" * 16, (was,), term, end)


X, Y, Z = came_back(0xA, A, 7, 50), came_back(0xB, B, 7, 70), came_back(0xC, C, 6, 90)


@pytest.mark.parametrize(
    ("own", "answers", "is_first"),
    [
        pytest.param(Y, [X, Z], True, id="the furthest of the last term"),
        pytest.param(X, [Y, Z], False, id="another one has more"),
        pytest.param(Z, [X, Y], False, id="a longer log of an earlier term has less"),
        pytest.param(Y, [X], False, id="one has not answered"),
        pytest.param(Y, [], False, id="nobody has answered"),
        pytest.param(Y, [X, Called(C, (), 7, 90)], False, id="one has kept everything: it stands itself"),
        pytest.param(Y, [X, Z, Called("f" * 16, (), 7, 99)], False, id="one that was not in the set has more"),
        pytest.param(Called("f" * 16, (), 7, 99), [X, Y, Z], True, id="and it goes on"),
        pytest.param(Called("f" * 16, (), 7, 99), [X, Y], False, id="but not if one of the set has not answered"),
        pytest.param(replace(Y, was=("e" * 16, B)), [X, Z], True, id="it has lost its power twice"),
        pytest.param(replace(X, end=70), [Y, Z], False, id="equal: the higher id"),
        pytest.param(Y, [replace(X, end=70), Z], True, id="equal: the higher id, from the other side"),
    ],
)
def test_roll_call(own: Called, answers: list[Called], is_first: bool) -> None:
    assert called_first(ENTRY, own, answers) is is_first


def test_only_one_of_all_is_first_when_each_asks() -> None:
    all_of_them = (X, Y, Z)
    assert sum(called_first(ENTRY, own, [each for each in all_of_them if each is not own]) for own in all_of_them) == 1


SILENCE_MS, EVERY_MS = 3_000, 50


class Watch:
    """A copy that looks every EVERY_MS."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.silence = Silence(SILENCE_MS, self.now_ms)

    def lost_after_ms(self, most_ms: int = 10_000) -> int | None:
        """Return after how long the master is lost, if nothing else happens."""
        began_ms = self.now_ms
        while self.now_ms - began_ms < most_ms:
            self.now_ms += EVERY_MS
            if self.silence.is_lost(self.now_ms, PAUSED_MS):
                return self.now_ms - began_ms
        return None

    def refuse(self) -> None:
        """The connection to the master ends, and another one is refused when that counts."""
        self.silence.refused(self.now_ms)
        self.silence.refused(self.now_ms + REFUSED_MS)

    def look(self, times: int) -> None:
        for _ in range(times):
            self.now_ms += EVERY_MS
            assert not self.silence.is_lost(self.now_ms, PAUSED_MS)


def test_silent_master_is_lost_and_one_that_is_heard_is_not() -> None:
    watch = Watch()
    for _ in range(100):
        watch.look(5)
        watch.silence.heard(watch.now_ms)
    assert watch.lost_after_ms() == SILENCE_MS


def test_master_whose_connection_has_ended_is_lost_when_another_one_is_refused_later() -> None:
    watch = Watch()
    watch.refuse()
    assert watch.lost_after_ms() == SILENCE_MS, "it was not heard before: it reads its log"
    watch.silence.heard(watch.now_ms)
    watch.silence.refused(watch.now_ms)
    watch.silence.refused(watch.now_ms + REFUSED_MS - 1)
    assert watch.lost_after_ms() == ENDED_MS, "the next one may be made"
    watch.silence.heard(watch.now_ms)
    watch.refuse()
    assert watch.lost_after_ms() == EVERY_MS


def test_master_whose_connection_has_ended_is_lost_when_nothing_is_heard_of_another_one() -> None:
    """Its machine ends after its process, or its packets are dropped from then on."""
    watch = Watch()
    watch.silence.heard(watch.now_ms)
    watch.silence.refused(watch.now_ms)
    assert watch.lost_after_ms() == ENDED_MS


def test_master_that_is_heard_again_is_not_refused_any_more() -> None:
    watch = Watch()
    watch.silence.heard(watch.now_ms)
    watch.refuse()
    watch.silence.heard(watch.now_ms)
    watch.silence.refused(watch.now_ms)
    assert watch.lost_after_ms() == ENDED_MS
    watch.silence.heard(watch.now_ms)
    assert watch.lost_after_ms() == SILENCE_MS


def test_new_master_has_the_time_to_read_its_log() -> None:
    watch = Watch()
    watch.silence.heard(watch.now_ms)
    watch.refuse()
    watch.silence.begin(watch.now_ms)
    watch.refuse()
    assert watch.lost_after_ms() == SILENCE_MS


@pytest.mark.parametrize("paused_ms", [120, 1_000, 60_000])
@pytest.mark.parametrize("refused", [False, True])
def test_pause_of_the_copy_itself_is_no_silence_of_its_master(paused_ms: int, refused: bool) -> None:
    watch = Watch()
    watch.silence.heard(watch.now_ms)
    if refused:
        watch.refuse()
    limit_ms = ENDED_MS if refused else SILENCE_MS
    watch.now_ms += paused_ms
    rest_ms = watch.lost_after_ms()
    assert rest_ms is not None
    assert rest_ms + PAUSED_MS >= limit_ms, "what was refused before the pause counts no more"


@pytest.mark.parametrize("step_ms", [PAUSED_MS + 1, 400])
@pytest.mark.parametrize("refused", [False, True])
def test_copy_whose_machine_is_so_busy_that_each_look_is_late_notices_that_its_master_is_lost(step_ms: int, refused: bool) -> None:
    watch = Watch()
    watch.silence.heard(watch.now_ms)
    if refused:
        watch.silence.refused(watch.now_ms)
    looks = 0
    while not watch.silence.is_lost(watch.now_ms, PAUSED_MS):
        watch.now_ms += step_ms
        looks += 1
        assert looks <= SILENCE_MS / PAUSED_MS
    assert looks == (ENDED_MS if refused else SILENCE_MS) / PAUSED_MS


@pytest.mark.parametrize("step_ms", [310, 1_000, LOOKED_MS])
def test_time_for_which_a_slow_register_is_waited_for_counts(step_ms: int) -> None:
    watch, began_ms = Watch(), 1_000
    watch.silence.heard(began_ms)
    while not watch.silence.is_lost(watch.now_ms, LOOKED_MS):
        watch.now_ms += step_ms
    assert watch.now_ms - began_ms < SILENCE_MS + step_ms


def test_entry_keeps_its_limit_however_many_copies_have_come_and_gone() -> None:
    gone = {f"{number:016x}": f"broker-a-{number}.broker-a-headless.messaging.svc.cluster.local:10911" for number in range(100, 400)}
    known = {**ENTRY.replicas, **gone}
    newest = list(gone)[-OTHERS_MAX:]
    for made in (
        with_members(ENTRY, ENTRY.in_sync, known),
        elected(replace(ENTRY, replicas=known), OWN, ADDRESS, 9),
        ruling_alone(replace(ENTRY, replicas=known), "log", OWN.member, ADDRESS, 9, "unclean"),
        restored("log", 9, OWN.member, ENTRY.in_sync, known, assumed_loss=False),
    ):
        assert made is not None
        assert Entry.from_json(replace(made, write=f"{OWN.member}-1").to_json()).replicas.keys() == {*made.in_sync, *newest}
