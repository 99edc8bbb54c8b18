"""Rules of permissions and ownership (docs/permissions.md; U1 to U5)."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any

from lockstep.broker.classic.connections import ClientConnections
from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.heartbeats import Heartbeat
from lockstep.broker.groups.legacy_clients import LegacyClients
from lockstep.broker.groups.membership import GroupMembers
from lockstep.broker.groups.tables.session_table import USER_MARK, BoundSession, Session, SessionRefusal, SessionTable
from lockstep.broker.processors import pull
from lockstep.broker.processors.lock import LockProcessor
from lockstep.broker.processors.producer_owners import ProducerOwners
from lockstep.protocol.bodies import GroupEventKind, HeartbeatReply, LockBatchBody
from lockstep.protocol.errors import DuplicateClientIdError
from lockstep.runtime.requests.dispatch import _Route
from lockstep.runtime.requests.request import NO_RESPONSE, HandlerResult, PendingResponse, Request
from lockstep.runtime.security import rights
from lockstep.runtime.security.authenticated_user import AuthenticatedUser
from lockstep.runtime.security.rights import Kind, Rights, Rule
from lockstep.runtime.security.server_security import ServerSecurity
from lockstep.runtime.security.watched_files import WatchedFiles
from sweep.mutants.registry import Patches, mutant

WORLD, CLASSIC_WORLD = "access", "access_classic"

# ------------------------------------------------------------------------------------------------------------------ when it is asked


@mutant(WORLD)
def a_held_pull_is_not_asked_again(patch: Patches) -> None:
    """A held pull is checked again when it is served."""
    check = pull._check_rights
    asked: dict[int, Any] = {}

    def once(one: Any) -> None:
        if id(one) not in asked:
            check(one)
            asked[id(one)] = one

    patch.set(pull, "_check_rights", once)


@mutant(WORLD, aimed="tests/unit/runtime/test_dispatch.py::test_request_that_waited_in_a_lane_is_asked_again_for_its_needs")
def a_request_that_waited_in_a_lane_is_not_asked_again(patch: Patches) -> None:
    """A request that waited in a lane is checked again when it begins."""

    async def handle(self: _Route, request: Request) -> HandlerResult:
        return await self.handler(request)  # type: ignore[no-any-return]

    patch.set(_Route, "check_and_handle", handle)


@mutant(WORLD)
def sync_asks_nothing(patch: Patches) -> None:
    """SYNC ends the membership of who may not consume any more, and takes no commit."""
    asking = vars(LockProcessor)["sync"]

    def sync(self: LockProcessor, request: Request) -> HandlerResult:
        reply = self._coordination.lock_sync.sync(request.endpoint.id, request.body, self._clock.boot_ms())
        return NO_RESPONSE if reply is None else PendingResponse(request.reply(body=reply))

    sync.__dict__.update(asking.__dict__)
    patch.set(LockProcessor, "sync", sync)


@mutant(WORLD)
def lock_asks_nothing(patch: Patches) -> None:
    """LOCK grants and renews nothing for who may not consume."""

    def lock(self: LockProcessor, request: Request, body: Any, by_time: Any) -> HandlerResult:
        reply = self._coordination.lock_sync.lock(request.endpoint.id, body, self._clock.boot_ms(), by_time)
        return NO_RESPONSE if reply is None else PendingResponse(request.reply(body=reply))

    patch.set(LockProcessor, "_session_lock", lock)


@mutant(CLASSIC_WORLD)
def classic_locks_ask_nothing(patch: Patches) -> None:
    """LOCK_BATCH_MQ of a classic client needs the right in group and topic."""
    ask: Callable[[LockProcessor, Request], HandlerResult] = LockProcessor.lock

    @wraps(ask)
    def lock(self: LockProcessor, request: Request) -> HandlerResult:
        body = self._lock_body(request)
        if not isinstance(body, LockBatchBody):
            return ask(self, request)
        reply = self._coordination.legacy.lock(body, self._clock.boot_ms(), request.user.name)
        return PendingResponse(request.reply(body=reply))

    patch.set(LockProcessor, "lock", lock)


@mutant(WORLD)
def heart_beat_asks_nothing(patch: Patches) -> None:
    """HEART_BEAT joins only groups that the user may consume."""
    heartbeat = GroupMembers.heartbeat

    def joins(self: GroupMembers, connection: int, beat: Heartbeat, now_ms: int, user: str, _denied: object) -> HeartbeatReply | None:
        return heartbeat(self, connection, beat, now_ms, user)

    patch.set(GroupMembers, "heartbeat", joins)


@mutant(WORLD)
def queues_of_a_member_without_rights_are_free_at_once(patch: Patches) -> None:
    """A member that may not consume any more keeps its queues until it knows."""
    evict = GroupMembers.evict

    def frees(self: GroupMembers, session: Session, name: str, why: str) -> None:
        evict(self, session, name, why)
        state: GroupState = self._state
        for key in state.locks.keys_held_by(session.id):
            if key[0] == name:
                state.free_queue(key, why, kind=GroupEventKind.LOST)

    patch.set(GroupMembers, "evict", frees)


@mutant(WORLD)
def a_member_without_rights_never_lets_go(patch: Patches) -> None:
    """A queue whose grant has ended is free when a LOCK of its holder does not name it with an epoch."""
    free = GroupState.free_queue

    def keeps(self: GroupState, key: Any, why: str, **facts: Any) -> None:
        lock = self.locks.holder(key)
        if lock is None or not lock.superseded or why != "its owner no longer names it":
            free(self, key, why, **facts)

    patch.set(GroupState, "free_queue", keeps)


# ------------------------------------------------------------------------------------------------------------------ what belongs to whom


def _decide_by_session_alone(patch: Patches) -> None:
    """Let no HEART_BEAT be refused because of the connections that are known."""
    record = ClientConnections.record

    def unrefused(self: ClientConnections, request: Request, body: Any, wall_ms: int) -> None:
        with suppress(DuplicateClientIdError):
            record(self, request, body, wall_ms)

    patch.set(ClientConnections, "record", unrefused)


@mutant(WORLD)
def a_session_of_another_user_is_bound(patch: Patches) -> None:
    """A session belongs to the user who began it."""
    bind = SessionTable.bind

    def for_all(self: SessionTable, session_id: str, client_id: str, *, user: str = "", **facts: Any) -> BoundSession | SessionRefusal:
        own = next((one for key, one in self._by_id.items() if key.partition(USER_MARK)[0] == session_id), None)
        return bind(self, session_id, client_id, user=user if own is None else own.user, **facts)

    patch.set(SessionTable, "bind", for_all)
    _decide_by_session_alone(patch)


@mutant(WORLD)
def the_place_of_another_user_is_taken_in_its_grace(patch: Patches) -> None:
    """In the grace of a session only its user takes the place of its client id."""
    bind = SessionTable.bind

    def for_all(self: SessionTable, session_id: str, client_id: str, *, user: str = "", **facts: Any) -> BoundSession | SessionRefusal:
        other = self._by_client.get(client_id)
        if other is not None and other.connection is None and other.user != user:
            del self._by_client[client_id]
        return bind(self, session_id, client_id, user=user, **facts)

    patch.set(SessionTable, "bind", for_all)
    _decide_by_session_alone(patch)


@mutant(WORLD)
def a_refused_heartbeat_takes_the_client_id(patch: Patches) -> None:
    """A client whose HEART_BEAT is refused does not keep the client id from the user to whom it belongs."""
    patch.set(SessionTable, "of_client", lambda self, client_id: None)


@mutant(CLASSIC_WORLD)
def a_classic_lock_of_another_user_is_renewed(patch: Patches) -> None:
    """A classic lock belongs to the user whose client has locked it."""
    patch.set(LegacyClients, "_is_owner", lambda self, key, holder, client_id, user: self._is_holder(holder, client_id))


@mutant(WORLD)
def a_producer_id_of_another_user_is_accepted(patch: Patches) -> None:
    """A producer id belongs to the user who sends under it."""
    patch.set(ProducerOwners, "check", lambda self, producer_id, user: None)


# ------------------------------------------------------------------------------------------------------------------ the file of users


@mutant(WORLD)
def users_are_read_once(patch: Patches) -> None:
    """Servers read the file of users again while they run."""
    patch.set(WatchedFiles, "look", lambda self, now_ms: ())


@mutant(WORLD)
def rights_are_those_of_the_first_request(patch: Patches) -> None:
    """The rights of a connection are those in force, not those of its login."""
    current = AuthenticatedUser.__dict__["_rights"].fget
    first: dict[int, tuple[AuthenticatedUser, Rights]] = {}

    def kept(self: AuthenticatedUser) -> Rights:
        return first.setdefault(id(self), (self, current(self)))[1]

    patch.set(AuthenticatedUser, "_rights", property(kept))


@mutant(WORLD)
def connections_of_removed_users_stay(patch: Patches) -> None:
    """The connections of who may not log in any more are closed."""
    patch.set(ServerSecurity, "is_gone", lambda self, endpoint: False)


@mutant(WORLD)
def rules_that_deny_are_ignored(patch: Patches) -> None:
    """A rule that denies stands above all that allow."""
    decide = Rights.decide
    patch.set(Rights, "decide", lambda self, action, kind, name: decide(replace(self, deny=()), action, kind, name))


@mutant(WORLD)
def the_beginning_of_a_name_matches_too_much(patch: Patches) -> None:
    """A rule with a * is about the names that begin as its own."""
    matches = Rule.matches

    def shorter(self: Rule, action: Any, kind: Kind, name: str) -> bool:
        return matches(replace(self, name=f"{self.name[:-2]}*") if self.name.endswith("-*") else self, action, kind, name)

    patch.set(Rule, "matches", shorter)


@mutant(WORLD)
def retry_topics_have_rights_of_their_own(patch: Patches) -> None:
    """The topic of a group's retries belongs to the group."""
    patch.set(rights, "RETRY_PREFIX", "\0")
