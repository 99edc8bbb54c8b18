"""GROUP_EVENTS: the last events of groups, for `lockstep group history` and for tools that follow them."""

from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.processors.query import QUERY_LANE
from lockstep.protocol.bodies import GroupEvents
from lockstep.protocol.codec.plain import pack_around
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.clients import GroupEventsHeader
from lockstep.runtime.clock import Clock
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, SUB, inside
from lockstep.runtime.requests.packed_rows import packed_rows
from lockstep.runtime.requests.request import HandlerResult, Request
from lockstep.runtime.turn import TurnBudget

EVENTS_PER_RESPONSE_MAX = 1_000


class GroupEventsProcessor:
    """Handles GROUP_EVENTS."""

    def __init__(self, coordination: Coordination, clock: Clock, budget: TurnBudget) -> None:
        self._state = coordination.state
        self._clock = clock
        self._budget = budget

    @handles(
        RequestCode.GROUP_EVENTS,
        GroupEventsHeader,
        needs=[inside("Get group; without one, those that may be listed")],
        lane=QUERY_LANE,
        at_once=True,
    )
    async def group_events(self, request: Request) -> HandlerResult:
        header: GroupEventsHeader = request.header
        if header.consumer_group is not None:
            request.user.check_group(header.consumer_group, SUB, GET)
        events, wall_ms = self._state.events, self._clock.wall_ms()
        events.stamp(self._clock.boot_ms(), wall_ms)
        after = begins_after(header, self._state.term)
        found, last = events.read(after, header.consumer_group, EVENTS_PER_RESPONSE_MAX)
        dropped = events.dropped(after, header.consumer_group)
        if header.consumer_group is None:
            sees = request.user.sees_group
            found, dropped = [each for each in found if sees(each.group)], {name: at for name, at in dropped.items() if sees(name)}
        reply = GroupEvents(self._state.term, wall_ms, events.began_ms or wall_ms, events.first, last, (), dropped)
        return request.reply(body=pack_around(to_plain(reply) | {"events": await packed_rows(found, self._budget)}))


def begins_after(header: GroupEventsHeader, term: int) -> int:
    """Return the number after which events are returned: 0 if the request continues the events of another term."""
    return header.after if header.term in (None, term) else 0
