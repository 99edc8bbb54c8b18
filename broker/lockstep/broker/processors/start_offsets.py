"""The offsets at which groups begin by a time, which LOCK and QUERY_CONSUMER_OFFSET of sessions need before they are handled.

They may have to be read from the disk: once for each group and topic, whichever member is first.
"""

from collections.abc import Callable
from typing import Protocol

from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.start_policy import NO_OFFSETS, OffsetsByTime
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.protocol.bodies import SessionLockBody
from lockstep.runtime.requests.request import NO_RESPONSE, HandlerResult, Request, RunInLane

START_LANE = "start"
"""The lane in which offsets by time are read from the disk."""


class TimeIndex(Protocol):
    """The part of the store that a start policy by time uses."""

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int: ...


class StartOffsets:
    """Finds the offsets that a request's start policies by time name, then lets the request be handled."""

    def __init__(self, coordination: Coordination, store: TimeIndex) -> None:
        self._starts = coordination.starts
        self._store = store

    def resolve(self, request: Request, body: SessionLockBody, handle: Callable[[OffsetsByTime], HandlerResult]) -> HandlerResult:
        """Return the outcome of `handle`: at once if `body` needs no offset by time, else from the lane, once they were found."""
        if not self._starts.policies_to_look_up(request.endpoint.id, body):
            return handle(NO_OFFSETS)

        async def find_and_handle() -> HandlerResult:
            found = await self._find(request, body)
            if request.endpoint.closed:
                return NO_RESPONSE  # the connection's session may be over: nothing may be recorded for it
            return handle(found)

        return RunInLane(START_LANE, find_and_handle)

    async def _find(self, request: Request, body: SessionLockBody) -> dict[QueueKey, int]:
        """Return the offsets that are still needed: the group may have begun while the request waited in the lane."""
        found: dict[QueueKey, int] = {}
        for policy in self._starts.policies_to_look_up(request.endpoint.id, body):
            assert policy.timestamp_ms is not None, "a policy by time names one"
            for queue_id in self._starts.own_queue_ids(policy.topic):
                offset = await self._store.offset_by_time(policy.topic, queue_id, policy.timestamp_ms)
                found[policy.group, policy.topic, queue_id] = offset
        return found
