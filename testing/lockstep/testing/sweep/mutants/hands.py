"""Rules about what people do to a group or a topic (ordering.md 6)."""

from dataclasses import replace

from lockstep.broker.books import Books
from lockstep.broker.tables.lock_table import Key
from lockstep.broker.tables.progress_table import Progress, ProgressTable
from lockstep.testing.sweep.mutants.registry import Patches, mutant


@mutant("reset")
def a_reset_frees_the_queue_at_once(patch: Patches) -> None:
    """Nobody else is granted a queue that was reset before its holder has heard of it."""
    patch.set(Books, "supersede", Books.end)


@mutant("reset")
def a_reset_keeps_the_grant(patch: Patches) -> None:
    """A reset ends the grant: what is finished of before is STALE."""
    patch.set(Books, "supersede", lambda self, key: None)


@mutant("reset")
def a_reset_keeps_the_generation(patch: Patches) -> None:
    """A reset draws a new generation."""
    set_ = ProgressTable.set

    def same(self: ProgressTable, key: Key, progress: Progress) -> None:
        before = self.get(key)
        set_(self, key, progress if before is None else replace(progress, generation=before.generation))

    patch.set(ProgressTable, "set", same)


@mutant("reset")
def resets_in_memory(patch: Patches) -> None:
    """A reset is recorded before it is answered."""

    def unrecorded(self: ProgressTable, key: Key, progress: Progress) -> None:
        self.apply(("progress.set", *key, progress.generation, progress.offset, progress.attempts, None, None))

    patch.set(ProgressTable, "set", unrecorded)
