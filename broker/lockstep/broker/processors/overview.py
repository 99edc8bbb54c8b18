"""OVERVIEW: the figures of the whole broker, for tools that show them as they change."""

from collections.abc import Callable

from lockstep.broker.figures.figures import Figures
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.processors.query import QUERY_LANE
from lockstep.broker.processors.status import status_for
from lockstep.broker.store import Store
from lockstep.protocol.bodies import BrokerStatus, Overview
from lockstep.protocol.codec.plain import pack_around
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.fields import to_plain
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, inside, on_cluster
from lockstep.runtime.requests.packed_rows import packed_rows
from lockstep.runtime.requests.request import HandlerResult, Request
from lockstep.runtime.turn import TurnBudget

LOOKED_UP_MAX = 50
"""Queues of which one OVERVIEW looks up the oldest message: it is requested every few seconds."""


class OverviewProcessor:
    """Handles OVERVIEW. `connection_count` returns the number of open connections, `held_count` that of held pulls."""

    def __init__(
        self,
        coordination: Coordination,
        figures: Figures,
        store: Store,
        budget: TurnBudget,
        status: Callable[[], BrokerStatus],
        connection_count: Callable[[], int],
        held_count: Callable[[], int],
    ) -> None:
        self._coordination = coordination
        self._figures = figures
        self._store = store
        self._budget = budget
        self._status = status
        self._connection_count = connection_count
        self._held_count = held_count

    @handles(RequestCode.OVERVIEW, needs=[on_cluster(GET), inside("topics and groups that may be listed")], lane=QUERY_LANE, at_once=True)
    async def overview(self, request: Request) -> HandlerResult:
        user = request.user
        groups = list(filter(user.sees_group, self._coordination.status.groups()))
        topics = await packed_rows([each for each in await self._figures.topics() if user.sees_topic(each.topic)], self._budget)
        shown = await self._figures.flows(groups, looked_up_max=LOOKED_UP_MAX)
        flows = await packed_rows([each for each in shown if user.sees_topic(each.topic) and user.sees_group(each.group)], self._budget)
        found = await packed_rows(await self._figures.groups(groups), self._budget)
        delays = await self._figures.delays()
        appended = self._store.writer.append_latency
        plain = to_plain(
            Overview(
                status=status_for(user, self._status()),
                connections=self._connection_count(),
                held_pulls=self._held_count(),
                unsynced_bytes=self._store.writer.unsynced_bytes,
                append_counts=tuple(appended.counts),
                append_total_us=appended.total_us,
                topics=(),
                groups=(),
                flows=(),
                delays=tuple(delays),
            )
        )
        return request.reply(body=pack_around(plain | {"topics": topics, "groups": found, "flows": flows}))
