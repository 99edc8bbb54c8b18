"""Puts the contracts of joining members into force, changes them and ends them, by the rules of contract.py (ordering.md 11)."""

from dataclasses import replace

from lockstep.broker.groups.contract import find_conflict, matching_version, resubscribed
from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.tables.group import Group
from lockstep.broker.groups.tables.session_table import Session
from lockstep.protocol.bodies import ConsumerGroup, GroupSettings
from lockstep.protocol.errors import SubscriptionConflictError
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

log = get_logger("broker.groups")


class ContractChanges:
    """Decides for each member that joins which contract it gets, and changes the contracts of its group for it."""

    def __init__(self, state: GroupState) -> None:
        self._state = state

    def version_for(self, session: Session, entry: ConsumerGroup, offered: ConsumerGroup) -> int | SubscriptionConflictError:
        """Return the version of the contract that the member gets, which is in force now, or why it can't join."""
        state = self._state
        group = state.groups.get(entry.group)
        if group is None or group.contract is None:
            state.groups.put_contract(entry.group, offered)
            return offered.contract_version
        if state.settings.uses_classic_policy(group.name):
            overruled = self._overrule(group, group.contract, session, entry, offered)
            if overruled is not None:
                return overruled
        known = matching_version(group.contracts, offered)
        if known is not None:
            return known
        if not self._others_depend(group, session):
            self._replace_contracts(group, offered)
            return offered.contract_version
        conflict = self._conflict(group, session, offered)
        if conflict is not None:
            return conflict
        facts = {"version": offered.contract_version, "in_force": sorted(group.contracts)}
        log_limited(log, "info", "group.contract_announced", group=group.name, **facts)
        state.groups.put_contract(group.name, offered)
        return offered.contract_version

    def _replace_contracts(self, group: Group, offered: ConsumerGroup) -> None:
        """Put a contract into force in place of all others, on which no other member depends."""
        self._state.end_group_grants(group.name)
        self._state.groups.put_contract(group.name, offered)
        for version in [each for each in group.contracts if each != offered.contract_version]:
            self._state.groups.end_contract(group.name, version)

    def forget_permission(self, name: str, version: int) -> None:
        """Forget that a lower version may join, because a member with it has."""
        settings = self._state.settings.get(name)
        if settings is not None and settings.next_contract_version == version:
            settings = replace(settings, next_contract_version=None)
            if settings == GroupSettings(name):
                self._state.settings.record_removal(name)
            else:
                self._state.settings.record_settings(settings)

    def _overrule(self, group: Group, here: ConsumerGroup, session: Session, entry: ConsumerGroup, offered: ConsumerGroup) -> int | None:
        """Apply the classic policy (ordering.md 11.4), which knows one contract and no versions. Return the version of that contract, or
        None if more than the subscriptions differs.

        The subscriptions of a member that joins apply to all, and those of a member that names a version above all others (it gained
        queues). Otherwise those of a member that is already on the list change nothing.
        """
        state, version = self._state, here.contract_version
        changed = resubscribed(here, offered)
        if changed is None:
            return None
        for client_id in group.member_ids if len(group.contracts) > 1 else ():
            if (member_session := group.members[client_id]) is not None:
                state.join_group(group.name, client_id, member_session, version)
        state.drop_unused_contract(group.name)
        newer = any(each.sub_version > group.sub_versions.get(each.topic, 0) for each in entry.subscriptions)
        if here != changed and (newer or group.members.get(session.client_id) != session.id):
            state.override_counts[group.name] = state.override_counts.get(group.name, 0) + 1
            state.groups.put_contract(group.name, changed)
        return version

    def _others_depend(self, group: Group, session: Session) -> bool:
        """Return whether another member, one that still drains a queue, or one that may return after a restart has a contract."""
        others = len(group.members) > (session.client_id in group.members)
        draining = any(each != session.id for each in self._state.locks.sessions_holding(group.name))
        return others or draining or group.name in self._state.retained_contracts

    def _conflict(self, group: Group, session: Session, asked: ConsumerGroup) -> SubscriptionConflictError | None:
        """Return why the contract can't be in force beside those that other members have (ordering.md 11.5), or None if it can.

        The error is temporary unless a connected member has a contract that can't be mixed with this one. So a running member that is only
        too old for one broker, which has not seen it during a change, keeps its queues at the others.
        """
        state, settings = self._state, self._state.settings.get(group.name)
        allowed = settings is not None and settings.next_contract_version == asked.contract_version
        used = [each for each in group.contracts if group.native_counts[each]]  # after a start, others may come back until their grace ends
        conflict = find_conflict(group.contracts, asked, used_count=len(used), allowed=allowed)
        if conflict is None:
            return None
        others = [client_id for client_id in group.member_ids if client_id != session.client_id]
        blocking = [each for each in others if group.members[each] and group.member_versions.get(each, 0) in conflict.refusing]
        named = blocking or others
        text = f"group {group.name} has another contract at {state.config.broker_name}: {conflict.difference}. "
        text += f"Members: {', '.join(named[:8]) or 'none'}{' …' if len(named) > 8 else ''}. Stop them, or use their settings"
        text += conflict.advice
        connected = any(self._connected(group, client_id) for client_id in blocking)
        return SubscriptionConflictError(text if connected else text + SubscriptionConflictError.TEMPORARY)

    def _connected(self, group: Group, client_id: str) -> bool:
        session_id = group.members[client_id]
        if session_id is None:
            return client_id in self._state.classic_connections
        session = self._state.sessions.get(session_id)
        return session is not None and session.connection is not None
