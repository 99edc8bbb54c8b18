"""Rules of a search for a key. No universe searches: each has a test that is aimed at it."""

from dataclasses import replace

from lockstep.broker.store.log.log_writer import LogWriter
from lockstep.broker.store.queues import search
from lockstep.broker.store.queues.consume_queue import ConsumeQueue
from lockstep.broker.store.queues.query import Query
from lockstep.broker.store.queues.search import Search, Wanted
from lockstep.protocol.names import STATE_TOPIC
from sweep.mutants.registry import Patches, mutant

TESTS = "tests/unit/broker/store/test_search.py"


@mutant("swarm", aimed=f"{TESTS}::test_forged_record_in_a_body_is_not_taken_for_the_message")
def the_innermost_record_is_taken(patch: Patches) -> None:
    """The record that has a key is the one that its queue names, not one that a sender has put into its body."""

    async def is_named(self: Search, topic: str, queue_id: int, queue_offset: int, position: int, size: int) -> bool:
        return True

    patch.set(Search, "_is_named", is_named)


@mutant("swarm", aimed=f"{TESTS}::test_key_is_found_wherever_the_borders_of_pieces_are")
def a_key_across_a_border_is_missed(patch: Patches) -> None:
    """A search also finds a key that begins in one piece of the log and ends in the next."""
    patch.set(search, "bytes_after", lambda key: 0)


@mutant("swarm", aimed=f"{TESTS}::test_part_of_a_key_is_not_found")
def a_part_of_a_key_matches(patch: Patches) -> None:
    """A search finds whole keys only."""
    patch.set(search, "_AFTER_WORD_MAX", 0xFF)
    patch.set(search, "has_key", lambda properties, wanted: wanted.key in properties)


@mutant("swarm", aimed=f"{TESTS}::test_records_of_the_brokers_state_are_never_found")
def the_states_records_are_shown(patch: Patches) -> None:
    """A search never shows records of the broker's own state."""
    named, wanted_one = vars(Search)["_is_named"], search.is_wanted

    async def is_named(self: Search, topic: str, queue_id: int, queue_offset: int, position: int, size: int) -> bool:
        return topic == STATE_TOPIC or await named(self, topic, queue_id, queue_offset, position, size)

    def is_wanted(record: bytes, position: int, wanted: Wanted) -> bool:
        return STATE_TOPIC.encode() in record or wanted_one(record, position, wanted)

    patch.set(Search, "_is_named", is_named)
    patch.set(search, "is_wanted", is_wanted)


@mutant("swarm", aimed=f"{TESTS}::test_message_that_waits_for_its_delay_is_found_by_the_topic_to_which_it_goes")
def what_was_delivered_is_still_found(patch: Patches) -> None:
    """A search finds the record of a message in a delay queue only while the message waits."""
    wanted_one = search.is_wanted

    def is_wanted(record: bytes, position: int, wanted: Wanted) -> bool:
        return wanted_one(record, position, replace(wanted, waits=lambda record: True))

    patch.set(search, "is_wanted", is_wanted)


@mutant("swarm", aimed=f"{TESTS}::test_message_is_found_only_when_it_is_confirmed")
def unconfirmed_is_found(patch: Patches) -> None:
    """A search finds a message only once it is confirmed, as readers of its queue do."""

    async def entry_at(self: Query, queue: ConsumeQueue | None, offset: int) -> tuple[int, int, int] | None:
        return None if queue is None else await self._entry(queue, offset)

    patch.set(Query, "entry_at", entry_at)
    patch.set(LogWriter, "confirmed", property(lambda self: self._log.written))
