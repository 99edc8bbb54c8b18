"""JSON whose keys are objects or numbers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.codec.fastjson import DEPTH_MAX, TEXT_BYTES_MAX, queue_key, read_fastjson, write_fastjson
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KEYS = st.one_of(TEXTS, st.integers(0, 1 << 62), st.builds(queue_key, TEXTS, st.integers(0, 9), TEXTS))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), TEXTS)
VALUES = st.recursive(SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)), max_leaves=8)


def test_keys_and_values_have_the_form_of_rocketmqs_library() -> None:
    body = {"offsetTable": {queue_key("a", 0, "t"): 5, queue_key("a", 1, "t"): {"x": [1, None, True, 2.5, "é"]}}, "ids": {0: "b"}, "no": []}
    text = '{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:5,{"brokerName":"a","queueId":1,"topic":"t"}:'
    text += '{"x":[1,null,true,2.5,"é"]}},"ids":{0:"b"},"no":[]}'
    assert write_fastjson(body).decode() == text
    assert read_fastjson(text.encode(), what="body") == body


def test_blanks_bare_keys_and_signs_within_strings_are_read() -> None:
    text = ' {\n{ "topic" : "t" , "queueId" : 0,\n"brokerName":"a" } : { jstack : "}{\\"\\u00e9" , code.size : [ ] } } '
    assert read_fastjson(text.encode(), what="body") == {queue_key("a", 0, "t"): {"jstack": '}{"é', "code.size": []}}


@given(VALUES)
def test_what_is_written_is_read(value: Any) -> None:
    assert read_fastjson(write_fastjson(value), what="body") == value


@pytest.mark.parametrize("text", ["{", "[1,]", "{,}", "{1:2,}", "nan", "1 2", "", "[1 2]", '{"a" 1}', '"a', "1e999", "01", "+1"])
def test_text_that_is_malformed_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="body is not JSON that can be read"):
        read_fastjson(text.encode(), what="body")


def test_text_beyond_the_limits_is_refused() -> None:
    assert read_fastjson(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX, what="body") is not None
    for text, said in (
        (b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1), "nested more deeply than 32 levels"),
        (b"{" * 100_000, "nested more deeply than 32 levels"),
        (b"[" + b" " * TEXT_BYTES_MAX, "131072 allowed"),
        (b"9" * 64, "is no value"),
        (b'"\\ud800"', "can't encode character"),
        (b"\xff", "utf-8"),
        (b'{{"a":[]}:1}', "has an object or a list in it"),
    ):
        with pytest.raises(RemoteProtocolError) as refused:
            read_fastjson(text, what="body")
        assert said in str(refused.value)


def test_half_a_surrogate_pair_is_not_written() -> None:
    with pytest.raises(LocalProtocolError):
        write_fastjson({"a": "\ud800"})
