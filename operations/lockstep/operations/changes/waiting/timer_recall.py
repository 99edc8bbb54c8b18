"""Take back messages that wait: one, or all with a key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from lockstep.operations.admin_client import AdminClient, broker_reasons, by_name, gather_results
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan, Table
from lockstep.operations.errors import OperationError
from lockstep.operations.messages.timers import TimerCriteria, WaitingTimer, list_timers, timer_json
from lockstep.operations.text import format_duration, format_time
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import ConfigError, QueryNotFoundError, TooLateToRecallError
from lockstep.protocol.headers.offsets import ListWaitingHeader
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.runtime.configuration.config import did_you_mean

LISTED_MAX = 20
"""Messages that a plan lists."""
AT_ONCE = 64
"""Recalls that are requested at once: each waits until the disk of its broker has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerRecall(Operation):
    """Take back messages that wait for any delay or until a time of day: one, or all with a key. Without --yes it only prints which.

    What was recalled is never delivered, and nothing brings it back. A message that is delivered meanwhile is not recalled.
    """

    words = ("timer", "recall")
    path = "timer-recall"
    title = "Recall messages that wait"

    handle: Annotated[
        str | None,
        Argument(
            metavar="HANDLE",
            help="The recall handle of the message, as `timer ls` prints it or its send returned it.",
            label="Recall handle",
            hint="of one message; empty for all with a key",
        ),
    ] = None
    topic: Annotated[
        str | None, Option(flags=("--topic", "-t"), help="With --key: the topic of the messages.", label="Topic", hint="of the key")
    ] = None
    key: Annotated[
        str | None,
        Option(
            flags=("--key", "-k"),
            help="Recall all messages of --topic that have this key.",
            label="Message key",
            hint="all messages of the topic that have it",
        ),
    ] = None
    yes: Annotated[bool, Option(flags=("--yes",), help="Do it.")] = False

    @classmethod
    def of_form(cls, **values: Any) -> Self:
        if values["handle"] is not None and values["key"] is None:
            values["topic"] = None  # a link to the form gives the topic too
        return cls(yes=True, **values)

    async def plan(self, admin: AdminClient) -> Plan:
        async with admin.keep_connections():
            if self.handle is not None and self.topic is None and self.key is None:
                return await self._plan_one(admin, self.handle)
            if self.handle is None and self.topic is not None and self.key is not None:
                return await self._plan_all(admin, self.topic, self.key)
        raise ConfigError("name a HANDLE, or use --topic TOPIC --key KEY for all messages of the topic that have this key")

    async def _plan_one(self, admin: AdminClient, text: str) -> Plan:
        handle = RecallHandle.decode(text)
        known = by_name(await admin.brokers())
        broker = known.get(handle.broker_name)
        if broker is None:
            raise OperationError(
                f"the handle is of broker {handle.broker_name}, which is not known{did_you_mean(handle.broker_name, known)}"
            )
        page = await admin.list_waiting(broker, ListWaitingHeader(handle.topic, recall_handle=text))
        timers = [WaitingTimer(broker.name, row) for row in page.rows]
        found: dict[str, Any] = {"messages": [timer_json(each) for each in timers], "recalled": 0, "delivered": 0, "failed": {}}
        named = f"message {handle.message_id} of topic {handle.topic}"
        effect = [
            f"M{named[1:]}, which is due at {format_time(each.row.due_ms)} {_wait(admin, each)}, will not be delivered." for each in timers
        ]

        async def carry_out() -> ChangeOutcome:
            if not self.yes:
                return self._not_done(effect, found, timers, nothing)
            async with admin.keep_connections():
                await admin.recall(broker, handle.topic, text)
            return ChangeOutcome([f"{named} was recalled: it will not be delivered"], {**found, "recalled": 1})

        nothing = f"{named} does not wait at {broker.name}: it was delivered or recalled, or its topic was deleted"
        return Plan(effect, carry_out, (text,), _table(timers), nothing=None if timers else nothing, json=found)

    async def _plan_all(self, admin: AdminClient, topic: str, key: str) -> Plan:
        known = by_name(await admin.brokers())
        listed = await list_timers(admin, TimerCriteria(topic, key=key))
        timers = [each for each in listed.found if each.row.handle]
        named = f"{len(timers):,} messages of topic {topic} with the key {key}"
        found: dict[str, Any] = {
            "messages": [timer_json(each) for each in timers],
            "recalled": 0,
            "delivered": 0,
            "failed": dict(listed.failed),
        }
        effect = []
        if timers:
            due = " to ".join(format_time(each.row.due_ms) for each in dict.fromkeys((timers[0], timers[-1])))
            effect.append(f"{named}, which are due at {due}, will not be delivered.")
        if len(timers) > LISTED_MAX:
            effect.append(f"The first {LISTED_MAX} of them are listed.")
        if count := len(listed.found) - len(timers):
            effect.append(f"{count:,} others have no id by which they could be recalled.")
        if listed.unread:
            effect.append(f"{listed.unread:,} messages could not be read by their brokers, and are left out.")

        async def carry_out() -> ChangeOutcome:
            if not self.yes:
                return self._not_done(effect, found, timers, nothing, incomplete)
            async with admin.keep_connections():
                recalled, delivered, failed = await _recall(admin, known, timers)
            failed = {**listed.failed, **failed}
            lines = [f"{recalled:,} messages of topic {topic} with the key {key} were recalled: they will not be delivered"]
            lines += [f"{delivered:,} others were delivered before"] if delivered else []
            text = (
                f"some messages may not have been recalled: {broker_reasons(failed)}. When that is solved, run `{self.command_line}` again"
            )
            counts = {"recalled": recalled, "delivered": delivered, "failed": failed}
            return ChangeOutcome(lines if timers else [nothing], {**found, **counts}, failed=text if failed else None)

        nothing = f"no message of topic {topic} with the key {key} waits, or none that can be recalled"
        incomplete = f"some brokers did not say what waits: {broker_reasons(listed.failed)}" if listed.failed else None
        handles = tuple(sorted(each.row.handle for each in timers))
        return Plan(effect, carry_out, handles, _table(timers), nothing=None if timers else nothing, incomplete=incomplete, json=found)

    def _not_done(
        self, effect: Sequence[str], found: Mapping[str, Any], timers: Sequence[WaitingTimer], nothing: str, incomplete: str | None = None
    ) -> ChangeOutcome:
        """Return the outcome without --yes."""
        if not timers:
            return ChangeOutcome([nothing], found, failed=incomplete)
        refusal = f"nothing was changed: to do it, run `{replace(self, yes=True).command_line}`"
        return ChangeOutcome(effect, found, table=_table(timers), failed=refusal)


async def _recall(
    admin: AdminClient, known: Mapping[str, BrokerAddress], timers: Sequence[WaitingTimer]
) -> tuple[int, int, dict[str, str]]:
    """Recall messages. Return how many were, how many had been delivered, and why others may not have been, by broker."""
    failed: dict[str, str] = {}
    done: list[bool] = []

    async def recall(timer: WaitingTimer) -> bool:
        try:
            await admin.recall(known[timer.broker], timer.row.topic, timer.row.handle)
        except (TooLateToRecallError, QueryNotFoundError):
            return False
        return True

    for first in range(0, len(timers), AT_ONCE):
        part = [each for each in timers[first : first + AT_ONCE] if each.broker not in failed]
        results = await gather_results({each.row.handle: recall(each) for each in part})
        done += results.values.values()
        failed |= {each.broker: results.failed[each.row.handle] for each in part if each.row.handle in results.failed}
    return sum(done), len(done) - sum(done), failed


def _wait(admin: AdminClient, timer: WaitingTimer) -> str:
    left_ms = timer.row.due_ms - admin.host.clock.wall_ms()
    return f"(in {format_duration(left_ms)})" if left_ms > 0 else f"(overdue for {format_duration(-left_ms)})"


def _table(timers: Sequence[WaitingTimer]) -> Table | None:
    """Return the first messages as a table; None without any."""
    rows = [
        (format_time(each.row.due_ms), each.row.topic, f"{each.broker}:{each.row.queue_id}", each.row.message_id, each.row.keys or None)
        for each in timers[:LISTED_MAX]
    ]
    return Table(("due", "topic", "queue", "id", "keys"), rows) if rows else None
