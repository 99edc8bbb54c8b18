"""Which responses report an error, and what a pull found."""

import pytest

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError, RemoteProtocolError, TopicNotExistError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.pull import PullReply
from lockstep.protocol.responses import PULLED, Pulled, checked, pulled

FIELDS = to_plain(PullReply(7, 3, 9))


def test_response_without_success_raises_its_error() -> None:
    response = Command(ResponseCode.SUCCESS)
    assert checked(response) is response
    with pytest.raises(TopicNotExistError, match="no such topic"):
        checked(Command(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic"))


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
