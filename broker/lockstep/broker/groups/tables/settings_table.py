"""The settings that operators have made for groups. RocketMQ: SubscriptionGroupManager."""

from collections.abc import Iterable
from typing import Any

from lockstep.broker.journal import Change, Journal
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.stored_form import read_stored, unknown_change
from lockstep.protocol.bodies import GroupSettings, SubscriptionPolicy
from lockstep.protocol.fields import to_plain


class SettingsTable:
    """A durable table of group name → settings. A group without an entry has the defaults."""

    KINDS = frozenset({"group.settings", "group.settings_removed"})

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._settings: dict[str, GroupSettings] = {}
        self._consume_disabled: dict[str, None] = {}
        """Groups that may not consume. Looked up for every pull."""

    def get(self, group: str) -> GroupSettings | None:
        """Return the group's settings, or None if it has the defaults."""
        return self._settings.get(group)

    def __len__(self) -> int:
        """Return the number of groups with settings."""
        return len(self._settings)

    def groups(self) -> list[str]:
        return list(self._settings)

    def may_consume(self, group: str) -> bool:
        return group not in self._consume_disabled

    def uses_classic_policy(self, group: str) -> bool:
        """Return whether the subscriptions of the member that joined last apply to the whole group (ordering.md 11.4)."""
        settings = self._settings.get(group)
        return settings is not None and settings.subscription_policy is SubscriptionPolicy.CLASSIC

    def record_settings(self, settings: GroupSettings) -> None:
        change = ("group.settings", to_plain(settings))
        self._journal.record(change, self.apply)

    def record_removal(self, group: str) -> None:
        """Give the group the defaults again."""
        self._journal.record(("group.settings_removed", group), self.apply)

    def drop_group(self, group: str) -> None:
        """Remove a group. This is not recorded as a change: `group.forgotten` of activity_table.py implies it."""
        self._settings.pop(group, None)
        self._consume_disabled.pop(group, None)

    def apply(self, change: Change) -> None:
        """Apply one change, made now or read from the log."""
        match change:
            case ("group.settings", plain):
                settings = read_stored(GroupSettings, plain)
                self.drop_group(settings.group)
                self._settings[settings.group] = settings
                if not settings.consume_enable:
                    self._consume_disabled[settings.group] = None
            case ("group.settings_removed", group):
                self.drop_group(group)
            case _:
                raise unknown_change(change)

    def snapshot(self) -> SnapshotRows:
        settings = dict(self._settings)
        return SnapshotRows(len(settings), lambda: (to_plain(settings[group]) for group in sorted(settings)))

    def restore(self, plain: Iterable[Any]) -> None:
        for each in plain:
            self.apply(("group.settings", each))
