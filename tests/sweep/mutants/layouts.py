"""Rules of brokers and nameservers about layouts and registrations."""

from typing import Any

from lockstep.broker.tables import topic_table
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.nameserver import processor as nameserver_processor
from lockstep.nameserver import route_table, topic_quota
from lockstep.nameserver.broker_record import BrokerRecord, Registration
from lockstep.nameserver.route_table import RouteTable
from lockstep.nameserver.topic_quota import TopicQuota
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.topics import layouts
from lockstep.protocol.topics.layouts import LayoutTable
from sweep.mutants.registry import Patches, mutant

CONVERGENCE = "tests/unit/broker/test_layout_convergence.py::"


@mutant("first")
def queues_of_the_losing_layout_are_dropped(patch: Patches) -> None:
    """A broker whose queues the winning layout lacks appends those that have messages."""
    patch.set(TopicTable, "_id_count_to_keep", lambda self, here, layout: 0)


@mutant("first", aimed=CONVERGENCE + "test_appended_queues_are_readable_and_keep_the_writable_queue_ids")
def appended_queues_open_others_to_writers(patch: Patches) -> None:
    """Queues that a broker appends for their messages are not written if an operator has closed queues of that broker to writers."""

    def append(self: TopicTable, layout: Any, id_count: int, write_count: int) -> None:
        more = id_count - layout.id_count(self._broker_name)
        if more > 0:
            self._put(layout.with_queues(self._broker_name, more, more, self._new_writer()))

    patch.set(TopicTable, "_append_queues", append)


@mutant("first", aimed=CONVERGENCE + "test_deletion_wins_against_every_layout_created_without_it")
def a_later_change_undoes_a_deletion(patch: Patches) -> None:
    """A layout that was made without knowledge of a deletion is deleted too."""
    take = TopicTable._put_if_higher

    def forgets(self: TopicTable, layout: Any) -> bool:
        known = self.layouts.get(layout.topic)
        if known is not None and known.deleted and not layout.deleted and self.layouts.is_newer(layout):
            self._put(layout)
            self._changed(layout.topic)
            return True
        return take(self, layout)

    patch.set(TopicTable, "_put_if_higher", forgets)


@mutant("first", aimed=CONVERGENCE + "test_queues_removed_by_an_operator_are_not_appended")
def removed_queues_come_back(patch: Patches) -> None:
    """Queues that an operator removed stay removed, also while they have messages."""

    def lost(self: TopicTable, here: Any, layout: Any) -> int:
        name = self._broker_name
        first, end = layout.id_count(name), here.id_count(name)
        return max((queue_id + 1 for queue_id in self._stored_queue_ids(layout.topic) if first <= queue_id < end), default=0)

    patch.set(TopicTable, "_id_count_to_keep", lost)


# ------------------------------------------------------------------------------------------------------- limits, registrations

TOPICS = "tests/unit/broker/test_topic_table.py::"
ROOM = "tests/unit/nameserver/test_topic_quota.py::"
ROUTES = "tests/unit/nameserver/test_route_table.py::"
CHALLENGES = "tests/unit/nameserver/test_route_challenges.py::"
PARTS = "tests/unit/nameserver/test_route_parts.py::"
OWNERS = "tests/unit/nameserver/test_name_owner.py::"
OWN = "tests/unit/broker/test_system_topics.py::"


@mutant("first", aimed=TOPICS + "test_requested_counter_may_be_at_most_2_to_the_20_above_the_current_one")
def any_counter_is_taken(patch: Patches) -> None:
    """A requested counter is at most 2^20 above the one here, so that no request exhausts the counters of a topic."""
    patch.set(topic_table, "COUNTER_STEP_MAX", 1 << 60)


@mutant("few_topics")
def topics_have_no_limit(patch: Patches) -> None:
    """A broker creates no topic beyond topics_max."""
    patch.set(TopicTable, "_check_room", lambda self, topic, known: None)


@mutant("first", aimed=ROUTES + "test_layout_beyond_the_limit_of_entries_is_rejected")
def entries_of_layouts_have_no_limit(patch: Patches) -> None:
    """A nameserver keeps at most 2^20 entries of layouts."""
    patch.set(LayoutTable, "more_entries", lambda self, layout: 0)


@mutant("first", aimed=PARTS + "test_oldest_partial_registration_is_evicted_for_a_new_one")
def a_registration_that_begins_again_is_new(patch: Patches) -> None:
    """A registration in parts that begins again on its connection keeps the time at which it began, and so its place in the order."""
    arrive = RouteTable._collect_part

    def forgets(self: RouteTable, said: Any, connection: int, now_ms: int) -> Any:
        arriving = arrive(self, said, connection, now_ms)
        arriving.began_ms = now_ms
        return arriving

    patch.set(RouteTable, "_collect_part", forgets)


@mutant("first", aimed=OWN + "test_layout_of_the_brokers_own_topic_is_never_adopted")
def system_topics_have_layouts(patch: Patches) -> None:
    """A system topic of the brokers has no layout, and so no deletion."""
    patch.set(layouts, "is_sendable_topic", lambda topic: True)


@mutant("first", aimed=ROUTES + "test_invalid_layout_is_rejected_by_name_and_the_others_are_adopted")
def one_layout_refuses_a_broker(patch: Patches) -> None:
    """A nameserver ignores an invalid layout, and accepts the registration."""
    take = RouteTable._adopt_layouts

    def refuses(self: RouteTable, arriving: Any, said: Registration) -> Any:
        taken = take(self, arriving, said)
        if arriving.refused_count:
            raise RemoteProtocolError("a layout is invalid")
        return taken

    patch.set(RouteTable, "_adopt_layouts", refuses)


@mutant("first")
def only_the_first_registration_brings_topics(patch: Patches) -> None:
    """A topic that a broker creates after it has registered is in the nameserver's layouts."""
    fits = TopicQuota.has_room
    here: dict[int, set[str]] = {}

    def take(self: RouteTable, arriving: Any, said: Registration) -> Any:
        here[id(self._quota)] = self._registered()
        return taken(self, arriving, said)

    taken = RouteTable._adopt_layouts
    patch.set(RouteTable, "_adopt_layouts", take)
    patch.set(TopicQuota, "has_room", lambda self, name: fits(self, name) and name not in here[id(self)])


@mutant("first", aimed=ROOM + "test_next_broker_has_its_share_regardless_of_other_brokers")
def one_broker_may_use_all_topics(patch: Patches) -> None:
    """A broker may add topics to a nameserver while it has fewer than are free."""
    patch.set(TopicQuota, "has_room", lambda self, name: len(self._broker_of) < topic_quota.LAYOUTS_MAX)


@mutant("first", aimed=ROOM + "test_topics_only_a_forgotten_broker_had_are_forgotten")
def topics_of_forgotten_brokers_are_kept(patch: Patches) -> None:
    """A nameserver removes topics that only removed brokers had registered."""
    patch.set(TopicQuota, "expire", lambda self, known, now_ms: [])


@mutant("first", aimed=ROOM + "test_topic_is_kept_while_another_registered_broker_has_it")
def topics_go_with_the_broker_that_was_first(patch: Patches) -> None:
    """A topic of a broker that is not registered counts for the next broker that registers with it."""
    count = TopicQuota.count

    def first_only(self: TopicQuota, topic: str, name: str, registered: Any) -> None:
        if topic not in self._broker_of:
            count(self, topic, name, registered)

    patch.set(TopicQuota, "count", first_only)


@mutant("first", aimed=TOPICS + "test_full_broker_adopts_no_unknown_topic_and_every_newer_layout_of_known_ones")
def topics_are_adopted_without_limit(patch: Patches) -> None:
    """A broker at its topic limit adopts no topic that it does not know."""
    patch.set(TopicTable, "is_full", False)


@mutant("first", aimed=ROOM + "test_full_broker_is_routed_and_gets_only_newer_layouts_of_its_own_topics")
def full_brokers_are_not_routed(patch: Patches) -> None:
    """A broker at its topic limit lacks only newer layouts of topics that it has."""
    missing = RouteTable._missing
    patch.set(RouteTable, "_missing", lambda self, theirs, *, full: missing(self, theirs, full=False))


@mutant("copies")
def a_higher_term_replaces(patch: Patches) -> None:
    """While a registered broker responds, no other process is registered under its name."""
    patch.set(RouteTable, "_check_challenge", lambda self, known, said, now_ms: None)


@mutant("first", aimed=CHALLENGES + "test_registered_broker_that_does_not_respond_is_replaced_after_the_timeout")
def silent_brokers_keep_their_name(patch: Patches) -> None:
    """A registered broker that does not respond within 5 s is replaced."""
    patch.set(route_table, "CHALLENGE_MS", 1 << 40)


@mutant("first", aimed="tests/unit/nameserver/test_suspended_nameserver.py::test_readable_frames_are_read_before_a_slice_is_counted")
def a_challenge_ends_before_responses_are_read(patch: Patches) -> None:
    """A nameserver that was paused reads the received data before it replaces a broker."""
    patch.set(nameserver_processor, "READ_TURNS", 0)


@mutant("first", aimed="tests/unit/nameserver/test_suspended_nameserver.py::test_suspension_of_the_nameserver_makes_no_broker_silent")
def standstills_of_nameservers_count_as_silence(patch: Patches) -> None:
    """Time in which a nameserver was paused does not count as silence of brokers."""
    patch.set(RouteTable, "exclude_pause", lambda self, pause_ms, now_ms: None)


@mutant("first", aimed=CHALLENGES + "test_store_that_lacks_the_last_accepted_start_is_rejected")
def copies_are_accepted(patch: Patches) -> None:
    """A store that has not seen the term that was accepted last is refused."""
    patch.set(route_table, "check_term", lambda known, new: None)


@mutant("first", aimed=CHALLENGES + "test_registered_broker_that_responds_to_a_challenge_is_not_replaced")
def proofs_are_not_compared(patch: Patches) -> None:
    """A registration with another proof belongs to another store, whatever else it names."""
    patch.set(
        Registration,
        "same_start",
        lambda self, other: (self.store_id, self.term, self.address) == (other.store_id, other.term, other.address),
    )


@mutant("names")
def the_owner_of_a_name_is_not_kept(patch: Patches) -> None:
    """A nameserver keeps the owner of a name while it is down; the owner replaces any other store that is registered under the name."""
    patch.set(BrokerRecord, "displaced_by", lambda self, new: False)


@mutant("first", aimed=OWNERS + "test_terms_of_the_owner_are_compared_even_after_a_stranger_was_registered")
def other_stores_change_the_terms_of_the_owner(patch: Patches) -> None:
    """A registration of another store does not change which terms of the owner are accepted."""
    patch.set(route_table, "next_owner", lambda before, new, seen_ms: (new, seen_ms))


@mutant("first", aimed=OWNERS + "test_store_registered_for_an_hour_becomes_the_owner")
def a_replaced_store_stays_the_owner(patch: Patches) -> None:
    """A store that has been registered for an hour without interruption becomes the owner of its name."""
    patch.set(route_table, "OWNER_MS", 1 << 60)


@mutant("first", aimed=PARTS + "test_registration_takes_effect_with_its_last_part")
def the_first_part_counts_as_the_registration(patch: Patches) -> None:
    """A registration in parts counts with its last part, and has the topics of all parts."""
    arrive = RouteTable._collect_part

    def forgets(self: RouteTable, said: Any, connection: int, now_ms: int) -> Any:
        arriving = arrive(self, said, connection, now_ms)
        arriving.broker_layouts = {}
        return arriving

    patch.set(RouteTable, "_collect_part", forgets)


@mutant("first", aimed=ROUTES + "test_broker_never_routed_is_forgotten_with_its_connection")
def unrouted_brokers_are_kept(patch: Patches) -> None:
    """A broker that was never routed is removed when its connection is gone."""

    def leave(self: RouteTable, known: Any) -> None:
        known.connection = None
        known.routed = False

    patch.set(RouteTable, "_unregister", leave)
