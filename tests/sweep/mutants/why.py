"""Rules of `lockstep why`: what explains a queue that stands."""

from types import FrameType

from lockstep.admin import why, why_text
from lockstep.broker.classic import relay
from lockstep.broker.group_status import GroupStatusReader
from lockstep.client.consumer import base_consumer, running_info, stacks
from lockstep.client.consumer.consume_model import ConsumeModel
from lockstep.client.consumer.queue_worker import QueueWorker
from lockstep.client.consumer.running_info import Oldest
from lockstep.client.consumer.stacks import Place
from sweep.mutants.registry import Patches, mutant

SITUATIONS = "tests/unit/admin/test_why_situations.py::"


@mutant(aimed=SITUATIONS + "test_owner_that_died_is_in_its_grace_and_then_gone")
def a_member_in_its_grace_is_called_gone(patch: Patches) -> None:
    """A member whose connection is lost may come back until its grace is over."""
    patch.set(GroupStatusReader, "_grace_left_ms", lambda self, session_id, now_ms: None)


@mutant(aimed=SITUATIONS + "test_filter_that_passes_nothing_is_no_standstill")
def lag_of_a_filter_is_called_standstill(patch: Patches) -> None:
    """Messages that no subscription matches do not wait."""
    patch.set(why, "_only_filtered", lambda facts: False)


@mutant(aimed=SITUATIONS + "test_call_that_has_run_longest_is_the_one_that_is_named")
def the_longest_call_is_not_the_one_that_blocks(patch: Patches) -> None:
    """Of several running calls the one that has run longest explains the queue."""

    def newest(model: ConsumeModel, worker: QueueWorker | None, now_ms: int, *, with_stack: bool) -> Oldest:
        call = max(model.running_calls(), key=lambda each: each.started_ms)
        return running_info._running_call(call, now_ms, with_stack=with_stack), str(call.queue.queue)

    patch.set(base_consumer, "oldest_call", newest)


@mutant(aimed="tests/unit/client/test_stacks.py::test_task_is_shown_down_to_what_it_awaits")
def values_are_shown_in_stacks(patch: Patches) -> None:
    """A stack has files, lines and functions, and no values."""

    def with_values(frame: FrameType) -> Place:
        code = frame.f_code.replace(co_qualname=f"{frame.f_code.co_qualname} {frame.f_locals}")
        return code, frame.f_lineno, ""

    patch.set(stacks, "_place", with_values)


@mutant(aimed=SITUATIONS + "test_silent_member_is_the_finding")
def a_silent_client_is_waited_for(patch: Patches) -> None:
    """A member of the SDK that does not respond within 3 s is the finding."""
    patch.set(relay, "NATIVE_MEMBER_MS", 60_000)


@mutant(aimed="tests/unit/client/test_stacks.py::test_task_is_shown_down_to_what_it_awaits")
def the_innermost_frame_is_called_the_applications(patch: Patches) -> None:
    """An operator looks at the application's own code, and not at the library in which it waits."""
    patch.set(stacks, "innermost_own", lambda places: len(places) - 1 if places else None)


@mutant(aimed="tests/unit/admin/test_why_watch.py::test_block_is_printed_when_the_answer_has_changed")
def an_age_is_another_answer(patch: Patches) -> None:
    """A watched answer is printed again when it says something else, and not because time has passed."""
    patch.set(why_text, "without_durations", lambda text: text)
