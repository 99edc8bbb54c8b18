"""The last login of each user, of those that servers report."""

from hypothesis import given
from hypothesis import strategies as st

from lockstep.operations.brokers.last_logins import last_logins
from lockstep.protocol.bodies import UserLogin

OPEN = {("n1", "billing"): 1, ("n1", "shop"): 0, ("broker-a", "billing"): 20, ("broker-a", "shop"): 300}
LOGINS = st.tuples(st.sampled_from(list(OPEN)), st.integers(0, 5), st.booleans(), st.booleans())


@given(st.lists(LOGINS, max_size=8, unique_by=lambda each: (each[0], each[2:])))
def test_newest_login_of_all_servers_is_shown_with_the_connections_to_each(known: list[tuple[tuple[str, str], int, bool, bool]]) -> None:
    reports: dict[str, list[UserLogin]] = {"n1": [], "broker-a": []}
    for (server, user), wall_ms, signed, exposed in known:
        reports[server].append(UserLogin(user, wall_ms, f"{server}-{user}", signed, exposed, OPEN[server, user]))
    found = last_logins(reports)
    assert set(found) == {user for (_, user), *_ in known}
    for user, last in found.items():
        mine = {server: [each for each in logins if each.user == user] for server, logins in reports.items()}
        assert last.login in mine[last.server]
        assert last.login.wall_ms == max(each.wall_ms for logins in mine.values() for each in logins)
        assert last.connections == sum(OPEN[server, user] for server, logins in mine.items() if logins)
