"""Rules of `lockstep why`: what explains a queue that stands."""

from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

from lockstep.broker.classic import relay
from lockstep.broker.groups.group_status import GroupStatusReader
from lockstep.client.consumer import base_consumer, running_info, stacks
from lockstep.client.consumer.calls.consume_model import ConsumeModel
from lockstep.client.consumer.calls.queue_worker import QueueWorker
from lockstep.client.consumer.running_info import Oldest
from lockstep.client.consumer.stacks import FramePlace
from lockstep.operations.explain import why, why_query, why_text
from sweep.mutants.registry import Patches, mutant

SITUATIONS = "tests/unit/operations/explain/test_why_situations.py::"
FAULTS = "tests/unit/operations/explain/test_why_faults.py::"


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
        return running_info._running_call(call, now_ms, with_stack=with_stack), str(call.runner.worker.queue)

    patch.set(base_consumer, "oldest_call", newest)


@mutant(aimed="tests/unit/client/test_stacks.py::test_task_is_shown_down_to_what_it_awaits")
def values_are_shown_in_stacks(patch: Patches) -> None:
    """A stack has files, lines and functions, and no values."""

    def with_values(frame: FrameType) -> FramePlace:
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


@mutant(aimed="tests/unit/operations/explain/test_why_watch.py::test_block_is_printed_when_the_answer_has_changed")
def an_age_is_another_answer(patch: Patches) -> None:
    """A watched answer is printed again when it says something else, and not because time has passed."""
    patch.set(why_text, "without_durations", lambda text: text)


@mutant(aimed="tests/unit/operations/explain/test_why_command.py::test_operators_who_ask_at_the_same_time_get_the_same_answer")
def a_member_that_answers_others_is_called_silent(patch: Patches) -> None:
    """A member that responds to another operator is asked again, and not blamed."""
    patch.set(why_query, "BUSY_MS_MAX", 0)


@mutant(aimed=FAULTS + "test_owner_that_has_left_finishes_its_call")
def the_held_pull_of_an_earlier_owner_counts(patch: Patches) -> None:
    """Messages do not wait if the pull of the member that was asked has passed over them, and not that of another one."""
    found = why._only_filtered

    def of_anyone(facts: why.Facts) -> bool:
        info = facts.info
        queue = None if info is None or info.queue is None else replace(info.queue, state="held")
        return found(facts if info is None else replace(facts, info=replace(info, queue=queue)))

    patch.set(why, "_only_filtered", of_anyone)


def _withheld(source: type, reader: str, field: str, value: object) -> Callable[[Patches], None]:
    """Return what makes the method `reader` of `source`, or that function of a module, return this value for a field."""

    def apply(patch: Patches) -> None:
        read = vars(source)[reader]

        def without(*args: Any, **options: Any) -> Any:
            found = read(*args, **options)
            return None if found is None else replace(found, **{field: value})

        patch.set(source, reader, without)

    return apply


_OF_QUEUE: tuple[Any, str] = GroupStatusReader, "read_queue"
_OF_GROUP: tuple[Any, str] = GroupStatusReader, "combine"
_OF_HELD: tuple[Any, str] = base_consumer, "running_queue"
_OF_MEMBER: tuple[Any, str] = base_consumer.BaseConsumer, "_running_info"
_EVIDENCE: dict[tuple[tuple[Any, str], str, object], str] = {
    (_OF_QUEUE, "owner_grace_ms", None): SITUATIONS + "test_owner_that_died_is_in_its_grace_and_then_gone",
    (_OF_QUEUE, "listed_owner", None): SITUATIONS + "test_queue_that_is_drained_for_another_member",
    (_OF_QUEUE, "classic_lease_left_ms", None): FAULTS + "test_owner_without_a_session_is_one_of_rocketmqs_clients",
    (_OF_QUEUE, "error", None): SITUATIONS + "test_backoff_after_a_failure",
    (_OF_QUEUE, "held_offset", None): SITUATIONS + "test_filter_that_passes_nothing_is_no_standstill",
    (_OF_QUEUE, "gap_first", None): "tests/unit/broker/test_done_progress.py::"
    "test_status_tells_what_retention_removed_and_when_as_long_as_this_process_knows_it",
    (_OF_GROUP, "settings", None): SITUATIONS + "test_consumption_that_is_switched_off",
    (_OF_GROUP, "refusals", None): SITUATIONS + "test_member_that_was_refused_is_shown_beside_the_others_and_alone",
    (_OF_GROUP, "grants", None): FAULTS + "test_queues_that_are_granted_again_and_again",
    (_OF_GROUP, "suspended_ms", None): SITUATIONS + "test_power_cut_suspends_grants",
    (_OF_HELD, "blocked", False): SITUATIONS + "test_exhausted_attempts_block_the_queue",
    (_OF_HELD, "blocked_keys", ()): SITUATIONS + "test_blocked_key_is_named",
    (_OF_HELD, "again_ms", None): SITUATIONS + "test_backoff_after_a_failure",
    (_OF_HELD, "uncommitted", 0): SITUATIONS + "test_messages_without_a_manual_commit",
    (_OF_HELD, "polled_ms", None): SITUATIONS + "test_polled_messages_that_were_not_committed",
    (_OF_HELD, "full", False): SITUATIONS + "test_queue_that_is_consumed_in_its_order_tells_that_no_more_is_fetched",
    (_OF_MEMBER, "paused", False): SITUATIONS + "test_paused_consumer",
    (_OF_MEMBER, "oldest", None): SITUATIONS + "test_call_that_has_run_longest_is_the_one_that_is_named",
    (_OF_MEMBER, "loop_blocked_ms", None): SITUATIONS + "test_loop_that_is_blocked_again_and_again",
    (_OF_MEMBER, "proof_left_ms", None): FAULTS + "test_member_whose_proofs_of_life_come_too_late",
}
"""What a broker or a member tells, the value without it, and the test that then finds another cause or none."""

for ((_source, _reader), _field, _value), _test in _EVIDENCE.items():
    _apply = _withheld(_source, _reader, _field, _value)
    _apply.__name__ = f"{_field}_is_withheld"
    _apply.__doc__ = f"A cause has its evidence: {_field} is reported."
    mutant(aimed=_test)(_apply)
