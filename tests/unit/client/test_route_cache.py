"""RouteCache never forgets a layout or an address because a nameserver does not know it."""

from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.route_cache import RouteCache
from lockstep.protocol.bodies import BrokerAddress, TopicRoute
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout


def layout(counter: int, writer: int = 1, *brokers: str) -> TopicLayout:
    return TopicLayout("t", LayoutVersion(counter, writer), tuple(LayoutEntry(name, 2, 2, counter) for name in brokers or ("a", "b")))


def address(name: str, at: str, *, term: int = 1, registered: bool = True) -> BrokerAddress:
    return BrokerAddress(name, "c", at, registered, term)


def test_only_a_higher_layout_replaces_the_cached_one() -> None:
    cache = RouteCache()
    assert cache.adopt(layout(2, 5))
    assert not cache.adopt(layout(2, 5))
    assert not cache.adopt(layout(1, 9))
    assert not cache.adopt(layout(2, 4))
    assert cache.adopt(layout(2, 6))
    found = cache.layout("t")
    assert found is not None
    assert found.version == LayoutVersion(2, 6)


def test_route_without_a_broker_keeps_its_last_known_address() -> None:
    cache = RouteCache()
    first = cache.merge(TopicRoute(layout(1), (address("a", "h:1"), address("b", "h:2"))))
    assert first.layout
    assert first.moved == ("a", "b")
    again = cache.merge(TopicRoute(layout(1), ()))
    assert not again
    assert cache.address("b") == "h:2"
    assert cache.broker_names() == ["a", "b"]
    assert cache.brokers_of("t") == ["a", "b"]
    assert cache.brokers_of("unheard") == []


def test_address_change_is_reported_once_and_older_terms_are_ignored() -> None:
    cache = RouteCache()
    cache.merge_brokers((address("a", "h:1", term=3),))
    assert cache.merge_brokers((address("a", "h:9", term=2),)) == ()
    assert cache.merge_brokers((address("a", "h:2", term=4),)) == ("a",)
    assert cache.merge_brokers((address("a", "h:2", term=4),)) == ()
    assert cache.address("a") == "h:2"
    assert cache.term("a") == 4
    assert cache.term("unheard") == 0


def test_unregistered_address_does_not_replace_a_registered_one_of_the_same_term() -> None:
    cache = RouteCache()
    cache.merge_brokers((address("a", "h:2", term=4),))
    assert cache.merge_brokers((address("a", "h:1", term=4, registered=False),)) == ()
    assert cache.address("a") == "h:2"


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=12))
def test_cache_keeps_the_highest_layout_in_any_order(versions: list[tuple[int, int]]) -> None:
    cache = RouteCache()
    for counter, writer in versions:
        cache.adopt(layout(counter, writer))
    found = cache.layout("t")
    assert (None if found is None else (found.version.counter, found.version.writer)) == max(versions, default=None)


def test_announced_layout_is_awaited_until_it_is_adopted_or_its_time_expires() -> None:
    cache = RouteCache()
    cache.adopt(layout(2))
    cache.announce("t", LayoutVersion(2, 1), 30_000)
    assert not cache.awaited(0), "it is known already"
    cache.announce("t", LayoutVersion(3, 1), 30_000)
    assert cache.awaited(29_999)
    assert cache.layout("t") == layout(2), "what a broker has may not be stored: it is not adopted"
    cache.adopt(layout(3))
    assert not cache.awaited(29_999)
    cache.announce("t", LayoutVersion(4, 1), 60_000)
    assert not cache.awaited(60_000)
    assert not cache.awaited(0), "over is over"


def test_higher_of_two_announced_layouts_is_awaited() -> None:
    cache = RouteCache()
    cache.announce("t", LayoutVersion(4, 1), 30_000)
    cache.announce("t", LayoutVersion(3, 9), 40_000)
    cache.adopt(layout(3, 9))
    assert cache.awaited(39_999) == ["t"]
    cache.adopt(layout(4))
    assert cache.awaited(0) == []


def test_first_layout_of_a_new_topic_is_awaited() -> None:
    cache = RouteCache()
    cache.announce("t", LayoutVersion(1, 1), 30_000)
    assert cache.awaited(0)
    cache.adopt(layout(1))
    assert not cache.awaited(0)


def test_broker_that_was_found_at_a_copy_is_looked_for_there_first() -> None:
    cache = RouteCache()
    assert cache.addresses("a") == ()
    cache.merge_brokers((BrokerAddress("a", "c", "h:1", True, 3, ("h:2", "h:3")),))
    assert cache.addresses("a") == ("h:1", "h:2", "h:3")
    assert cache.hear("a", 4)
    cache.found("a", "h:2", 4)
    assert cache.addresses("a") == ("h:2", "h:1", "h:3")
    assert cache.merge_brokers((address("a", "h:1", term=3),)) == (), "a nameserver that is out of date"
    assert cache.merge_brokers((address("a", "h:2", term=4, registered=False),)) == ()
    assert cache.addresses("a") == ("h:2", "h:1", "h:3")
    cache.found("a", "h:2", 4)
    cache.found("unheard", "h:2", 4)
    assert cache.broker_names() == ["a"]
