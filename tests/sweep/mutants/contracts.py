"""Rules of groups whose members have contracts of several versions (ordering.md 11.5)."""

from lockstep.broker.groups import contract
from lockstep.broker.groups.contract_changes import ContractChanges
from lockstep.broker.groups.membership import GroupMembers
from lockstep.broker.groups.tables.group import Group
from lockstep.protocol.bodies import Subscription
from sweep.mutants.registry import Patches, mutant

AIMED = "tests/unit/broker/test_contract_versions.py::"


@mutant("rolling")
def pulls_are_filtered_by_the_newest_contract(patch: Patches) -> None:
    """A pull is filtered by the contract of its own member."""

    def newest(self: GroupMembers, name: str, topic: str, connection: int | None = None) -> Subscription | None:
        group = self._state.groups.get(name)
        return None if group is None else group.subscription(topic)

    patch.set(GroupMembers, "subscription", newest)


@mutant("rolling", aimed=AIMED + "test_draining_member_of_an_ended_contract_commits_and_releases")
def a_draining_member_is_filtered_by_another_contract(patch: Patches) -> None:
    """A pull of a session that has left the group is not filtered by the contract of others."""

    def lenient(self: GroupMembers, name: str, topic: str, connection: int | None = None) -> Subscription | None:
        group, session = self._state.groups.get(name), self._state.sessions.session_on(connection or 0)
        return None if group is None else group.subscription(topic, None if session is None else session.client_id)

    patch.set(GroupMembers, "subscription", lenient)


@mutant("rolling", aimed=AIMED + "test_what_owners_must_agree_on_is_refused_whatever_the_version")
def versions_are_mixed_whatever_differs(patch: Patches) -> None:
    """Members run together only if their contracts agree on what decides about owners, and one subscription includes the other."""
    patch.set(contract, "mixing_refusal", lambda here, asked: None)


@mutant("rolling", aimed=AIMED + "test_queues_of_a_topic_are_shared_by_the_members_that_subscribe_to_it")
def every_member_shares_every_topic(patch: Patches) -> None:
    """The queues of a topic are shared by the members that subscribe to it."""
    patch.set(Group, "_compute_shares", lambda self: ((), {}))


@mutant("rolling", aimed=AIMED + "test_older_version_is_refused_until_an_operator_allows_it_once")
def an_older_version_may_join(patch: Patches) -> None:
    """A contract whose version is below those in force is refused, unless an operator allowed it."""
    conflict = vars(ContractChanges)["_conflict"]

    def lenient(self: ContractChanges, *args: object) -> object:
        found = conflict(self, *args)
        return None if found is not None and " is older than " in str(found) else found

    patch.set(ContractChanges, "_conflict", lenient)


@mutant("rolling", aimed=AIMED + "test_draining_member_of_an_ended_contract_commits_and_releases")
def a_contract_without_members_stays_in_force(patch: Patches) -> None:
    """A contract ends when no member has it and others have another one."""
    patch.set(Group, "unused_versions", property(lambda self: []))
