"""How much state clients may create: limits of groups, members, subscriptions, progress and locks, and the room on the disk (ADR 13)."""

from lockstep.broker.groups.group_tables import GroupTables
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.protocol.bodies import Subscription
from lockstep.protocol.errors import NoPermissionError


class GroupLimits:
    """Checks whether there is room for new state.

    Each method raises NoPermissionError above a limit, or ServiceNotAvailableError if the disk is too full for new state. None records
    anything: a request that can still be refused for another reason checks first and records last.
    """

    def __init__(self, tables: GroupTables) -> None:
        self._tables = tables

    def check_group_room(self, group: str) -> None:
        """Check that the group is known or may be added."""
        tables = self._tables
        if group in tables.activity:
            return
        limit = tables.config.groups_max
        if len(tables.activity) >= limit:
            raise NoPermissionError(
                f"{tables.config.broker_name} knows {len(tables.activity)} groups, {limit} are allowed (--groups-max): group {group} is "
                "refused. Groups without a member and a commit are forgotten after --group-idle-days; `lockstep group delete` removes one"
            )
        self.check_disk_room(f"group {group}")

    def check_member_room(self, group: str, client_id: str) -> None:
        """Check that one more member may join the group."""
        tables, limit = self._tables, self._tables.config.members_max
        if tables.groups.member_count >= limit:
            raise NoPermissionError(
                f"{tables.config.broker_name} has {tables.groups.member_count} members of groups, {limit} are allowed (--members-max): "
                f"{client_id} can't join group {group}"
            )
        self.check_disk_room(f"member {client_id} of group {group}")

    def check_subscription_room(self, group: str, client_id: str, asked: tuple[Subscription, ...]) -> None:
        """Check that the subscriptions of a member may be stored. Does not check the disk: they are not durable by themselves."""
        tables = self._tables
        kept, limit = tables.groups.subscription_bytes, tables.config.subscription_bytes_max
        if (more := tables.groups.additional_bytes(group, asked)) and kept + more > limit:
            raise NoPermissionError(
                f"{tables.config.broker_name} keeps subscriptions of {kept} bytes, {limit} are allowed (--subscriptions-mib-max): "
                f"{client_id} can't subscribe with {more} bytes more in group {group}"
            )

    def check_progress_room(self, group: str, topic: str, count: int) -> None:
        """Check that `count` more queues of the topic may have progress of the group. Never raises for 0."""
        if count <= 0:
            return
        tables, limit = self._tables, self._tables.config.progress_max
        if len(tables.progress) + count > limit:
            raise NoPermissionError(
                f"{tables.config.broker_name} keeps progress of {len(tables.progress)} queues of groups, {limit} are allowed "
                f"(--progress-max): group {group} can't begin in {count} queues of {topic}"
            )
        self.check_disk_room(f"progress of group {group} in {topic}")

    def check_lock_room(self, key: QueueKey, count: int) -> None:
        """Check that `count` more locks, of which `key` is the first, may be stored. Never raises for 0."""
        if count <= 0:
            return
        tables, limit = self._tables, self._tables.config.progress_max
        if len(tables.locks) + count > limit:
            raise NoPermissionError(
                f"{tables.config.broker_name} keeps {len(tables.locks)} locks, {limit} are allowed (--progress-max): "
                f"{count} more from {key} are refused"
            )
        self.check_disk_room(f"a lock of group {key[0]} in {key[1]}")

    def check_disk_room(self, what: str) -> None:
        """Check that the disk has room for new state. `what` names it in the error."""
        if self._tables.disk_check is not None:
            self._tables.disk_check(what)
