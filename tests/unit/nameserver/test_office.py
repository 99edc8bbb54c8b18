"""Masters whose terms stand in a register: who replaces whom at a nameserver, and what routes say in between."""

import pytest

from lockstep.nameserver.broker_record import KEPT_MS
from lockstep.nameserver.route_table import RouteTable
from lockstep.protocol.errors import BrokerNameTakenError, RegistrationPendingError
from support.route_table_kit import PROOF, STORE_A, STORE_B, broker_registration, layout

OTHER_PROOF = "d" * 32
REPLACES, PENDING, TAKEN = "it replaces the other one at once", "the other one is challenged", "it is refused"

ERRORS = {PENDING: RegistrationPendingError, TAKEN: BrokerNameTakenError}

# A start of term 10 at 10.0.0.1 is registered, or has closed its connection. Another one registers from 10.0.0.2.
ROWS = [
    # office, store, proof, term, the first one is registered, then, the term that a refusal names
    (True, STORE_A, PROOF, 11, True, REPLACES, None),
    (True, STORE_A, PROOF, 11, False, REPLACES, None),
    (True, STORE_A, PROOF, 10, True, TAKEN, 10),
    (True, STORE_A, PROOF, 10, False, TAKEN, 10),
    (True, STORE_A, PROOF, 9, True, TAKEN, 10),
    (True, STORE_A, PROOF, 9, False, TAKEN, 10),
    (True, STORE_A, OTHER_PROOF, 11, True, PENDING, None),
    (True, STORE_A, OTHER_PROOF, 9, True, PENDING, None),
    (True, STORE_A, OTHER_PROOF, 11, False, REPLACES, None),
    (True, STORE_B, PROOF, 11, True, PENDING, None),
    (True, STORE_B, PROOF, 9, True, PENDING, None),
    (True, STORE_B, PROOF, 11, False, REPLACES, None),
    (False, STORE_A, PROOF, 11, True, PENDING, None),
    (False, STORE_A, PROOF, 11, False, REPLACES, None),
    (False, STORE_A, PROOF, 10, True, PENDING, None),
    (False, STORE_A, PROOF, 10, False, TAKEN, None),
    (False, STORE_A, PROOF, 9, True, TAKEN, None),
    (False, STORE_A, PROOF, 9, False, TAKEN, None),
]


@pytest.mark.parametrize("was_in_office", [True, False])
@pytest.mark.parametrize(("office", "store", "proof", "term", "alive", "then", "named"), ROWS)
def test_who_replaces_a_registered_broker(
    office: bool, store: str, proof: str, term: int, alive: bool, then: str, named: int | None, was_in_office: bool
) -> None:
    table = RouteTable()
    first = broker_registration(term=10, office=was_in_office)
    table.register(first, 1, 0)
    if not alive:
        table.connection_closed(1, 0)
    second = broker_registration(store=store, proof=proof, term=term, previous=10, port=2, office=office)
    if then == REPLACES:
        assert table.register(second, 2, 6_000).superseded == (1 if alive else None)
        assert table.brokers("internal")[0].address == second.address
        return
    with pytest.raises(ERRORS[then]) as refused:
        table.register(second, 2, 6_000)
    assert getattr(refused.value, "term", None) == named
    assert table.brokers("internal")[0].address == first.address


def test_deposed_master_that_still_responds_neither_keeps_its_name_nor_gets_it_back() -> None:
    table = RouteTable()
    old, new = broker_registration(term=10, office=True), broker_registration(term=11, port=2, office=True)
    table.register(old, 1, 0)
    table.confirm_alive("broker-a", 1, 1)  # to the challenge of a stranger
    assert table.register(new, 2, 2).superseded == 1
    for connection in (1, 3):
        with pytest.raises(BrokerNameTakenError):
            table.register(old, connection, 3)
    assert table.connection_closed(1, 4) == ()
    assert [(each.address, each.registered, each.term) for each in table.brokers("internal")] == [(new.address, True, 11)]


def test_copy_that_has_not_seen_the_accepted_term_is_refused_in_office_too() -> None:
    table = RouteTable()
    table.register(broker_registration(term=10, office=True), 1, 0)
    with pytest.raises(BrokerNameTakenError, match="has not seen term 10"):
        table.register(broker_registration(term=12, previous=9, port=2, office=True), 2, 1)


@pytest.mark.parametrize(
    ("tried", "port", "taken"),
    [((10,), 1, True), ((10, 11), 1, True), ((), 1, False), ((11,), 1, False), ((10,), 2, False)],
)
def test_term_that_was_accepted_unknown_to_its_store_is_its_own_at_the_same_address_only(
    tried: tuple[int, ...], port: int, taken: bool
) -> None:
    """The broker was killed before it knew. Another copy of the store may have drawn the same term."""
    table = RouteTable()
    table.register(broker_registration(term=10), 1, 0)
    table.connection_closed(1, 1)
    again = broker_registration(term=12, previous=9, port=port, tried=tried)
    if taken:
        assert table.register(again, 2, 2).joined
    else:
        with pytest.raises(BrokerNameTakenError, match="has not seen term 10"):
            table.register(again, 2, 2)


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize(
    ("office", "classic", "after_ms", "is_there"),
    [
        (True, True, KEPT_MS - 1, True),
        (True, True, KEPT_MS, False),
        (True, False, 0, False),
        (False, True, 0, False),
    ],
)
def test_classic_routes_keep_a_broker_in_office_for_a_while_after_it_has_left(
    office: bool, classic: bool, after_ms: int, is_there: bool, orderly: bool
) -> None:
    table = RouteTable()
    table.register(broker_registration(office=office, layouts=(layout(),)), 1, 0)
    if orderly:
        table.unregister("broker-a", STORE_A, 10, 1, 5_000)
    else:
        table.connection_closed(1, 5_000)
    route = table.route("orders", "internal", 5_000 + after_ms, classic=classic)
    assert route is not None
    assert [each.registered for each in route.brokers] == [is_there]


def test_routes_have_the_other_copies_beside_an_internal_address_only() -> None:
    table = RouteTable()
    table.register(broker_registration(replicas=("10.0.0.2:10911",), layouts=(layout(),)), 1, 0)
    for listener, replicas in (("internal", ("10.0.0.2:10911",)), ("another", ("10.0.0.2:10911",)), ("external", None)):
        route = table.route("orders", listener, 0)
        assert route is not None
        assert [each.replicas for each in (*route.brokers, *table.brokers(listener))] == [replicas, replicas]
    table.register(broker_registration(layouts=(layout(),)), 1, 1)
    assert table.brokers("internal")[0].replicas is None
