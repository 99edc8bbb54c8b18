"""Which responses report an error, and what a pull found."""

import pytest

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError, NotLeaderError, RemoteProtocolError, TopicNotExistError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.pull import PullReply
from lockstep.protocol.responses import PULLED, Pulled, checked, error_fields, pulled

FIELDS = to_plain(PullReply(7, 3, 9))


def test_response_without_success_raises_its_error() -> None:
    response = Command(ResponseCode.SUCCESS)
    assert checked(response) is response
    with pytest.raises(TopicNotExistError, match="no such topic"):
        checked(Command(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic"))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, (None, None)),
        ({"address": "10.0.0.2:10911", "term": 7}, ("10.0.0.2:10911", 7)),
        ({"address": 7, "term": "10.0.0.2:10911"}, (None, None)),
    ],
)
def test_refusal_names_who_is_responsible_instead(fields: dict[str, object], named: tuple[str | None, int | None]) -> None:
    with pytest.raises(NotLeaderError) as refused:
        checked(Command(ResponseCode.NOT_LEADER, remark="a replica", fields=fields))
    assert (refused.value.address, refused.value.term) == named
    address, term = named
    assert error_fields(NotLeaderError("a replica", address=address, term=term)) == (fields if address else None)


@pytest.mark.parametrize("code", ResponseCode)
def test_only_the_codes_of_pulls_have_a_result(code: ResponseCode) -> None:
    response = Command(code, remark="why", fields=FIELDS, body=b"records")
    if code not in PULLED:
        with pytest.raises(BrokerError, match="why"):
            pulled(response)
        return
    data = b"records" if code == ResponseCode.SUCCESS else b""
    assert pulled(response) == Pulled(data, 7, 3, 9, moved=code == ResponseCode.PULL_OFFSET_MOVED)


def test_pull_without_a_next_offset_is_an_invalid_response() -> None:
    with pytest.raises(RemoteProtocolError):
        pulled(Command(ResponseCode.SUCCESS))
