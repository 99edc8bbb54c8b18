"""The two flows of a parked key: by its rules no message is in neither of them, and none in both."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lockstep.client.consumer.calls.parking.machine import Conditions
from lockstep.protocol.bodies import ParkState
from support.effort import examples
from support.park_flows import PAGE, QUEUE, Fate, Flows, LawBrokenError
from sweep.mutants import switched_off

S = ParkState
HELD_PULLS_DO_NOT_COUNT = "what a held pull has passed does not count"
"""Of the pull processor, which the flows do not have. Universes detect the mutant `a_held_pull_does_not_count`."""


def park(flows: Flows, before: int = 0, after: int = 8) -> None:
    """Start the owner of a queue, in which key "a" is parked at its first message. Every second message is of "a"."""
    flows.produce(*["b"] * before, *["a", "b"] * (after // 2))
    flows.start_owner()
    read(flows)
    for _ in range(before):
        flows.call("b")
    flows.fail("a")


def read(flows: Flows) -> None:
    """Let the owner pull once, and receive the answer."""
    flows.pull()
    flows.answer()
    if flows.owner is not None and flows.owner.answers:
        flows.arrive()


def handle_main(flows: Flows) -> None:
    """Let the owner read the main flow to its end, and accept everything."""
    assert flows.owner is not None
    while flows.owner.queue.next_offset < flows.end and flows.held is None:
        read(flows)
        for lane in flows.callable():
            while lane in flows.callable():
                flows.call(lane)


def replay_all(flows: Flows, key: str = "a") -> None:
    """Let the owner replay a key up to the end of the queue, so that it asks for the end of the replay."""
    while not flows.may_end(key):
        flows.read_replay(key)
        while flows.replayable(key):
            flows.call_replay(key)


def finish(flows: Flows) -> None:
    flows.go_on()
    flows.check_all()


def answer_in_flight(flows: Flows) -> None:
    """A pull has left the key out, and its answer is on its way while the owner asks for the end where it has pulled itself."""
    park(flows, after=PAGE)
    handle_main(flows)
    flows.replay("a")
    replay_all(flows)
    flows.produce("a", "b")
    flows.pull()
    flows.answer()
    flows.end_replay("a")
    finish(flows)


def held_pull(flows: Flows) -> None:
    """A held pull has passed a message of the key, and found nothing for the owner."""
    park(flows, after=PAGE)
    handle_main(flows)
    flows.replay("a")
    replay_all(flows)
    flows.produce("a")
    flows.pull()
    flows.answer()
    assert flows.held == flows.end
    flows.end_replay("a")
    flows.produce("b")
    finish(flows)


def pull_read_before_the_end(flows: Flows) -> None:
    """A pull was read while the key was left out, and is answered after its replay has ended: such as a read from the disk."""
    park(flows, after=PAGE)
    handle_main(flows)
    flows.replay("a")
    replay_all(flows)
    flows.produce("a", "b")
    flows.pull()
    flows.end_replay("a")
    flows.answer()
    finish(flows)


def lost_response_to_the_end(flows: Flows) -> None:
    """The replay has ended at the broker, and the main flow brings the key again, before the owner knows."""
    park(flows, after=PAGE)
    handle_main(flows)
    flows.replay("a")
    replay_all(flows)
    flows.end_replay("a", Fate.LOST)
    flows.sync()
    flows.produce("a", "b")
    read(flows)
    flows.end_replay("a")
    finish(flows)


def end_that_never_arrived(flows: Flows) -> None:
    """A pull has left the key out since the end was asked for, and the broker that gets the repeated request has forgotten that."""
    park(flows, after=PAGE)
    handle_main(flows)
    flows.replay("a")
    replay_all(flows)
    flows.end_replay("a", Fate.UNDELIVERED)
    flows.produce("a", "b")
    read(flows)
    flows.crash()
    flows.end_replay("a")
    finish(flows)


def done_range_over_the_key(flows: Flows) -> None:
    """The next owner does not pull what the last one has finished, nor the messages of the key that were left out in between. Its replay
    has come less far, and it has pulled nothing yet."""
    flows.produce("b", "a", "c", "a", "c", "a", "c", "d")
    flows.start_owner()
    read(flows)
    flows.fail("a")
    flows.call("c")
    read(flows)
    while "c" in flows.callable():
        flows.call("c")
    flows.commit()
    assert (flows.progress.offset, flows.progress.done) == (0, (1, 7)), "b waits at 0"
    flows.kill_owner()
    flows.crash()
    flows.start_owner()
    flows.replay("a")
    flows.read_replay("a", examined=1)
    flows.call_replay("a")
    flows.read_replay("a", examined=1)
    flows.end_replay("a")
    finish(flows)


def owner_dies_after_the_end(flows: Flows) -> None:
    """The next owner begins below the end of the replay: what was replayed must not come again."""
    park(flows, before=1, after=8)
    flows.replay("a")
    replay_all(flows)
    handle_main(flows)
    flows.end_replay("a")
    flows.kill_owner()
    finish(flows)


def fetched_messages_of_the_key(flows: Flows) -> None:
    """The owner has fetched later messages of the key when one of them is parked."""
    park(flows, after=PAGE)
    while flows.callable():
        flows.call(flows.callable()[0])
    finish(flows)


def lost_response_to_a_park(flows: Flows) -> None:
    """The key is parked at the broker, pulls leave it out, and the owner does not know that."""
    flows.produce("a", "b", "a", "b", "b", "b", "a", "b")
    flows.start_owner()
    read(flows)
    flows.fail("a", Fate.LOST)
    flows.sync()
    read(flows)
    while flows.callable():
        flows.call(flows.callable()[0])
    finish(flows)


def park_that_was_not_synced(flows: Flows) -> None:
    """A pull has left the key out, the broker forgets why, and the owner dies after it has committed what it has finished around it."""
    flows.produce("a", "b", "b", "b", "b", "a", "b", "b")
    flows.start_owner()
    read(flows)
    flows.fail("a", Fate.LOST)
    read(flows)
    while "b" in flows.callable():
        flows.call("b")
    flows.crash()
    flows.commit()
    flows.kill_owner()
    finish(flows)


SCENARIOS: list[tuple[Callable[[Flows], None], str]] = [
    (answer_in_flight, "answered_pulls_of_the_main_flow_do_not_count"),
    (held_pull, HELD_PULLS_DO_NOT_COUNT),
    (done_range_over_the_key, "done_ranges_hide_a_parked_key"),
    (pull_read_before_the_end, "a_pull_whose_hidden_keys_have_changed_is_answered"),
    (lost_response_to_the_end, "messages_are_taken_while_a_replay_ends"),
    (end_that_never_arrived, "a_repeated_end_names_the_first_pull"),
    (owner_dies_after_the_end, "the_row_goes_with_the_end"),
    (fetched_messages_of_the_key, "held_messages_of_a_parked_key_are_called"),
    (lost_response_to_a_park, "a_park_is_sent_once"),
    (park_that_was_not_synced, "done_ranges_pass_a_key_that_may_be_parked"),
]
"""Each scenario, and the mutant of the product without whose rule it breaks a law."""


@pytest.mark.parametrize(("scenario", "mutant"), SCENARIOS)
def test_message_is_in_exactly_one_flow_by_the_rule_that_is_for_it(scenario: Callable[[Flows], None], mutant: str) -> None:
    """Without the rule one of the laws is broken."""
    scenario(Flows())
    with switched_off(None if mutant == HELD_PULLS_DO_NOT_COUNT else mutant), pytest.raises(LawBrokenError):
        scenario(Flows(held_pulls_count=mutant != HELD_PULLS_DO_NOT_COUNT))


STORY: list[Callable[[Flows], None]] = [
    read,
    lambda flows: flows.fail("a"),
    lambda flows: flows.call("b"),
    lambda flows: flows.commit(),
    read,
    lambda flows: flows.replay("a"),
    lambda flows: flows.read_replay("a", examined=3),
    lambda flows: flows.call_replay("a"),
    lambda flows: flows.call_replay("a"),
    lambda flows: flows.read_replay("a"),
    lambda flows: flows.call_replay("a"),
    lambda flows: flows.call_replay("a"),
    lambda flows: flows.read_replay("a"),
    lambda flows: flows.produce("a", "b"),
    lambda flows: flows.pull(),
    lambda flows: flows.answer(),
    lambda flows: flows.end_replay("a"),
    lambda flows: flows.arrive(),
    lambda flows: flows.read_replay("a"),
    lambda flows: flows.call_replay("a"),
    lambda flows: flows.read_replay("a"),
    lambda flows: flows.end_replay("a"),
    lambda flows: flows.call("b"),
    lambda flows: flows.commit(),
]
"""Message by message: a key is parked, and replayed while the main flow goes on. The first end is refused."""
PARK, COMMIT, REPLAY, REFUSED_END, END = 1, 3, 5, 16, 21
"""Steps of the story."""


def story(flows: Flows, steps: int = len(STORY)) -> None:
    flows.produce(*"abababab")
    flows.start_owner()
    for step in STORY[:steps]:
        step(flows)


def test_story_comes_to_its_end() -> None:
    flows = Flows()
    story(flows)
    assert flows.owner is not None
    assert (flows.owner.machine.hidden, flows.owner.replays) == ({"a": 10}, {})
    assert [offset for offset in flows.accepted if flows.keys[offset] == "a"] == [0, 2, 4, 6, 8]
    finish(flows)
    assert sorted(flows.accepted) == [*range(10)], "each once"


@pytest.mark.parametrize("steps", range(len(STORY) + 1))
@pytest.mark.parametrize("happens", ["owner dies", "broker dies", "broker dies after a sync", "both die", "connection ends"])
def test_nothing_is_lost_nor_accepted_twice_whatever_dies_between_two_steps(steps: int, happens: str) -> None:
    flows = Flows()
    story(flows, steps)
    if "sync" in happens:
        flows.sync()
    if "broker" in happens or "both" in happens:
        flows.crash()
    if "owner" in happens or "both" in happens:
        flows.kill_owner()
    flows.disconnect()
    finish(flows)


@pytest.mark.parametrize("steps", range(REPLAY + 1, END + 1))
@pytest.mark.parametrize("owned", [True, False])
def test_key_that_is_dropped_between_two_steps_is_accepted_or_copied_in_order(steps: int, owned: bool) -> None:
    flows = Flows()
    story(flows, steps)
    if not owned:
        flows.kill_owner()
    flows.drop("a")
    flows.copy()
    flows.crash()
    finish(flows)


@pytest.mark.parametrize(
    ("fate", "dies"), [(fate, dies) for fate in (Fate.LOST, Fate.UNDELIVERED) for dies in ("nobody", "owner", "broker")]
)
@pytest.mark.parametrize("what", ["park", "commit", "replay", "refused end", "end"])
def test_request_that_is_lost_on_its_way_or_on_its_way_back_is_made_good(what: str, fate: Fate, dies: str) -> None:
    """Each request of an owner, without a response: it is repeated, or the next owner goes on where the broker knows."""
    flows = Flows()
    story(flows, {"park": PARK, "commit": COMMIT, "replay": REPLAY + 2, "refused end": REFUSED_END, "end": END}[what])
    match what:
        case "park":
            flows.fail("a", fate)
        case "commit":
            flows.commit(fate)
        case "replay":
            flows.call_replay("a", fate)
        case _:
            flows.end_replay("a", fate)
    if dies == "owner":
        flows.kill_owner()
    elif dies == "broker":
        flows.crash()
    finish(flows)


FATES = st.sampled_from([Fate.ANSWERED, Fate.ANSWERED, Fate.LOST, Fate.UNDELIVERED])


class BothFlows(RuleBasedStateMachine):
    """Any interleaving of messages, pulls, calls, parks, replays, drops and deaths: each message of a key in one flow, and in order."""

    def __init__(self) -> None:
        super().__init__()
        self.flows = Flows()

    @initialize(steps=st.integers(0, len(STORY)))
    def begin(self, steps: int) -> None:
        story(self.flows, steps)

    # ------------------------------------------------------------------------------------------------------ the main flow

    @rule(keys=st.lists(st.sampled_from(["a", "a", "b", None]), min_size=1, max_size=4))
    def store(self, keys: list[str | None]) -> None:
        self.flows.produce(*keys)

    @precondition(lambda self: self.may_pull())
    @rule(answered=st.booleans(), arrives=st.booleans())
    def pull(self, answered: bool, arrives: bool) -> None:
        self.flows.pull()
        if answered:
            self.flows.answer()
            if arrives and self.flows.owner is not None and self.flows.owner.answers:
                self.flows.arrive()

    def may_pull(self) -> bool:
        owner = self.flows.owner
        return owner is not None and self.flows.reading is None and not owner.answers and not owner.pull_stops

    @precondition(lambda self: self.flows.reading is not None)
    @rule()
    def answer(self) -> None:
        self.flows.answer()

    @precondition(lambda self: self.flows.held is not None and self.flows.reading is None)
    @rule()
    def expire(self) -> None:
        self.flows.expire()

    @precondition(lambda self: self.flows.owner is not None and self.flows.owner.answers)
    @rule()
    def arrive(self) -> None:
        self.flows.arrive()

    @precondition(lambda self: self.flows.owner is not None and self.flows.callable())
    @rule(data=st.data(), count=st.integers(1, 4))
    def call(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            if lanes := self.flows.callable():
                self.flows.call(data.draw(st.sampled_from(lanes)))

    @precondition(lambda self: self.keyed_lanes())
    @rule(data=st.data(), fate=FATES)
    def fail(self, data: st.DataObject, fate: Fate) -> None:
        self.flows.fail(data.draw(st.sampled_from(self.keyed_lanes())), fate)

    def keyed_lanes(self) -> list[str]:
        """Return the lanes of the main flow whose key may be parked."""
        return [] if self.flows.owner is None else [lane for lane in self.flows.callable() if isinstance(lane, str)]

    @precondition(lambda self: self.flows.owner is not None)
    @rule(fate=FATES)
    def commit(self, fate: Fate) -> None:
        self.flows.commit(fate)

    @precondition(lambda self: self.flows.owner is not None and self.flows.owner.unsure)
    @rule(data=st.data(), fate=FATES)
    def park_again(self, data: st.DataObject, fate: Fate) -> None:
        assert self.flows.owner is not None
        self.flows.park_again(data.draw(st.sampled_from(self.flows.owner.unsure)), fate)

    # ------------------------------------------------------------------------------------------------------------ replays

    @precondition(lambda self: any(row.state is S.PARKED for row in self.flows.table))
    @rule(key=st.sampled_from("aab"))
    def replay(self, key: str) -> None:
        self.flows.replay(key)

    @precondition(lambda self: self.flows.table.waiting_count(QUEUE))
    @rule(key=st.sampled_from("ab"), copied=st.booleans())
    def drop(self, key: str, copied: bool) -> None:
        self.flows.drop(key)
        if copied:
            self.flows.copy()

    @precondition(lambda self: any(row.state is S.DROPPING for row in self.flows.table))
    @rule()
    def copy(self) -> None:
        self.flows.copy()

    @precondition(lambda self: self.replays())
    @rule(data=st.data(), examined=st.integers(1, 6), calls=st.integers(0, 4), fate=FATES)
    def go_on_with_a_replay(self, data: st.DataObject, examined: int, calls: int, fate: Fate) -> None:
        key = data.draw(st.sampled_from(self.replays()))
        for _ in range(calls):
            if self.flows.replayable(key):
                self.flows.call(key)
        if key in self.replays() and self.flows.run(key) is not None:
            self.flows.serve(key, fate, examined)

    @precondition(lambda self: self.replayable())
    @rule(data=st.data(), fate=FATES)
    def fail_in_a_replay(self, data: st.DataObject, fate: Fate) -> None:
        self.flows.fail(data.draw(st.sampled_from(self.replayable())), fate)

    @precondition(lambda self: self.replays())
    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        """A replay's turn or the end of its pause comes, and its request leaves."""
        self.flows.run(data.draw(st.sampled_from(self.replays())))

    @rule(held=st.booleans(), paused=st.booleans())
    def change(self, held: bool, paused: bool) -> None:
        self.flows.change(Conditions(held, paused, connected=True))

    def replays(self) -> list[str]:
        return [] if self.flows.owner is None else [str(key) for key in self.flows.owner.replays]

    def replayable(self) -> list[str]:
        return [key for key in self.replays() if self.flows.replayable(key)]

    # ------------------------------------------------------------------------------------------------------------- deaths

    @rule()
    def sync(self) -> None:
        self.flows.sync()

    @rule(synced=st.booleans())
    def crash(self, synced: bool) -> None:
        if synced:
            self.flows.sync()
        self.flows.crash()

    @rule(starts=st.booleans())
    def kill_owner(self, starts: bool) -> None:
        self.flows.kill_owner()
        if starts:
            self.flows.start_owner()

    @precondition(lambda self: self.flows.owner is None)
    @rule()
    def start_owner(self) -> None:
        self.flows.start_owner()

    @invariant()
    def rows_are_counted_and_have_a_valid_state(self) -> None:
        rows = list(self.flows.table)
        assert self.flows.table.count == len(rows)
        for row in rows:
            assert 0 <= row.next <= self.flows.end
            assert (row.upto == row.next) if row.state is S.ENDED else row.upto == 0

    def teardown(self) -> None:
        self.flows.go_on()
        self.flows.check_all()


TestBothFlows = BothFlows.TestCase
TestBothFlows.settings = examples(600)
