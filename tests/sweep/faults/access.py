"""Users who lose rights and passwords and get them again, and users who try to get what is not theirs."""

from sweep.access import INTRUDER, consuming_users, sending_users
from sweep.events.locks import SessionBound
from sweep.intruders import spy_main, take_classic_lock_main, take_client_id_main, take_producer_id_main
from sweep.storm import Storm

LOST_S = (3, 6, 12, 25, 45)
"""How long a right is lost. Servers need 5 s to notice: some notice nothing, or only one of them does."""
SWITCH_S = (0.5, 6, 7, 9)
"""The time from a new password in the file to its use by the clients."""
OLD_S = (0.5, 3, 10)
"""The time from then until the old password is gone."""
RECENT_S = 5.0


def lose_sub(storm: Storm) -> None:
    """Take a member its right on the topic or on its group, by a rule that is missing or by one that denies."""
    access = storm.universe.access
    if access is not None:
        _lose(storm, storm.random.choice(consuming_users(access)), "Sub")


def lose_pub(storm: Storm) -> None:
    access = storm.universe.access
    if access is not None:
        _lose(storm, storm.random.choice(sending_users(access)), "Pub")


def _lose(storm: Storm, user: str, action: str) -> None:
    access, random = storm.universe.access, storm.random
    assert access is not None
    usual = access.usual[user]
    rule = random.choice([rule for rule in usual.allow if rule.startswith(action)])
    denied = random.random() < 0.5
    storm.record_fault("right lost", user, f"{rule}{' is denied' if denied else ''}")
    if denied:
        access.put(user, allow=usual.allow, deny=(rule,))
    else:
        access.put(user, allow=tuple(each for each in usual.allow if each != rule), deny=())
    storm.call_later(random.choice(LOST_S), _give_back, storm, user)


def _give_back(storm: Storm, user: str) -> None:
    assert storm.universe.access is not None
    storm.record_fault("heal", user, "its rights")
    storm.universe.access.give_back(user)


def remove_user(storm: Storm) -> None:
    """Remove a user for some time: its connections end, and it can't log in."""
    access, random = storm.universe.access, storm.random
    if access is not None:
        user = random.choice([*consuming_users(access), *sending_users(access)])
        storm.record_fault("user removed", user)
        access.remove(user)
        storm.call_later(random.choice(LOST_S), _give_back, storm, user)


def rotate_password(storm: Storm) -> None:
    """Add a password, let the clients use it, and take the old one away. Some clients use it before each server knows it."""
    access, random = storm.universe.access, storm.random
    if access is None:
        return
    user = random.choice([*consuming_users(access), *sending_users(access), *storm.universe.brokers])
    added = access.add_password(user)
    if added is None:
        return
    storm.record_fault("password added", user)
    switch_s = random.choice(SWITCH_S)
    storm.call_later(switch_s, access.use_password, user, added)
    storm.call_later(switch_s + random.choice(OLD_S), _end_rotation, storm, user)


def _end_rotation(storm: Storm, user: str) -> None:
    assert storm.universe.access is not None
    storm.record_fault("password removed", user)
    storm.universe.access.end_rotation(user)


def intrude(storm: Storm) -> None:
    """Let another user try to take a client id, a producer id or a lock, or to get what its rules forbid."""
    universe, random = storm.universe, storm.random
    if universe.access is None:
        return
    broker, _ = storm.broker()
    attempts = [spy_main(universe, broker, random), take_producer_id_main(universe, broker)]
    attempts += [take_classic_lock_main(universe, broker)] * 2 if universe.classics else []
    if (bound := _living(storm)) is not None:
        attempts.append(take_client_id_main(universe, bound, random))
    universe.launch(INTRUDER, "admin", random.choice(attempts))


def take_place(storm: Storm) -> None:
    """Let the connections of a client end, and another user try to take its client id at once, in its grace."""
    universe, random = storm.universe, storm.random
    bound = _living(storm)
    if universe.access is None or bound is None:
        return
    address, back_s = bound.machine, random.choice([0.6, 1, 5])
    universe.launch(INTRUDER, "admin", take_client_id_main(universe, bound, random))
    if random.random() < 0.5:
        storm.take_down(address, back_s)
        return
    storm.record_fault("reset", address, "all connections")
    for connection in universe.loop.network.between(address, universe.brokers[bound.broker]):
        universe.loop.network.reset(connection)


def _living(storm: Storm) -> SessionBound | None:
    """Return the last session that a running process of some consumer has bound at some broker."""
    universe = storm.universe
    broker, _ = storm.broker()
    process = universe.running(storm.random.choice(universe.consumers))
    if process is None:
        return None
    of_it = (event for event in reversed(universe.history.of(SessionBound)) if event.process == process.number and event.broker == broker)
    return next(of_it, None)


KINDS = (lose_sub, lose_pub, remove_user, rotate_password, intrude, take_place)
