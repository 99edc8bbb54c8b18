"""The inbox: what it compares, per what, and in which transaction (law X1)."""

from typing import Any

from lockstep.client import inbox
from lockstep.client.database import Database, Statement
from sweep.mutants.registry import Patches, mutant

INBOX = "tests/unit/client/test_inbox.py"


@mutant("swarm", aimed=f"{INBOX}::test_older_owner_is_fenced_and_changes_nothing")
def the_fence_is_not_compared(patch: Patches) -> None:
    """An owner with a lower epoch than the stored one changes nothing."""
    patch.set(inbox, "FENCE", inbox.FENCE.replace(" AND epoch <= :epoch", ""))


@mutant("swarm", aimed=f"{INBOX}::test_higher_generation_begins_anew")
def generations_are_not_compared(patch: Patches) -> None:
    """In a higher generation than the stored one, a message takes effect whatever its offset is."""
    patch.set(inbox, "ADVANCE", inbox.ADVANCE.replace("generation < :generation OR ", ""))


@mutant("swarm", aimed=f"{INBOX}::test_failed_call_takes_effect_when_it_is_repeated")
def the_inbox_commits_alone(patch: Patches) -> None:
    """The inbox is committed with the effects, or not at all."""
    execute: Any = Database.execute

    def execute_and_commit(self: Any, statement: Statement) -> Any:
        result = execute(self, statement)
        self._handle.commit()
        return result

    patch.set(Database, "execute", execute_and_commit)


@mutant("swarm", aimed=f"{INBOX}::test_key_that_was_parked_takes_effect_after_later_ones_of_other_keys")
def a_lane_is_the_queue_under_keys(patch: Patches) -> None:
    """Where keys leave the order of their queue, the next offset is that of a key."""
    patch.set(inbox, "lane_of", lambda fence, message: f"{fence.topic}@{fence.broker}:{fence.queue}")


@mutant("swarm", aimed=f"{INBOX}::test_message_takes_effect_once_and_later_ones_after_it")
def equal_offsets_pass(patch: Patches) -> None:
    """The offset of the last message that took effect is below the next one."""
    patch.set(inbox, "ADVANCE", inbox.ADVANCE.replace("next_offset <= :queue_offset", "next_offset <= :next_offset"))
