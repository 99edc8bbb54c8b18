import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.tags import TagFilter, java_string_hash, tags_code


@pytest.mark.parametrize(
    ("text", "code"), [("", 0), ("a", 97), ("TagA", 2598919), ("中文", 646394), ("😀", 1772899), ("polygenelubricants", -(1 << 31))]
)
def test_tag_hashes_equal_javas(text: str, code: int) -> None:
    assert java_string_hash(text) == code
    assert tags_code(text) == code


@given(st.text())
def test_tag_hash_is_an_int32(text: str) -> None:
    assert -(1 << 31) <= java_string_hash(text) < 1 << 31


def test_missing_tag_has_code_0() -> None:
    assert tags_code(None) == tags_code("") == 0


@pytest.mark.parametrize("expression", [None, "", " ", "*", " * "])
def test_empty_expression_matches_every_tag(expression: str | None) -> None:
    everything = TagFilter.parse(expression)
    assert everything.all
    assert everything.matches_tag(None)
    assert everything.matches_tag("x")


@pytest.mark.parametrize("expression", ["a||b", " a || b ", "b || a || a", "||a||  ||b||"])
def test_tags_are_separated_by_double_bars(expression: str) -> None:
    two = TagFilter.parse(expression)
    assert two == TagFilter(False, frozenset({"a", "b"}), frozenset({97, 98}))
    assert two.matches_tag("a")
    assert not two.matches_tag("c")
    assert not two.matches_tag("A")


def test_message_without_a_tag_does_not_match_a_tag_expression() -> None:
    some = TagFilter.parse("a")
    assert not some.matches_tag(None)
    assert not some.matches_tag("")
    assert tags_code(None) not in some.hashes


def test_client_rejects_a_hash_collision_that_the_broker_passed() -> None:
    assert java_string_hash("Aa") == java_string_hash("BB")
    some = TagFilter.parse("Aa")
    assert tags_code("BB") in some.hashes
    assert not some.matches_tag("BB")


@pytest.mark.parametrize("expression", ["||", " || || "])
def test_expression_of_bars_without_tags_is_rejected(expression: str) -> None:
    with pytest.raises(LocalProtocolError, match="names no tag"):
        TagFilter.parse(expression)


@given(st.text(max_size=10), st.text(max_size=10))
def test_broker_filter_passes_every_tag_that_the_client_matches(expression: str, tag: str) -> None:
    try:
        parsed = TagFilter.parse(expression)
    except LocalProtocolError:
        return
    if parsed.matches_tag(tag):
        assert parsed.all or tags_code(tag) in parsed.hashes


def test_lone_surrogate_is_hashed_as_one_utf_16_unit() -> None:
    assert java_string_hash("\ud800") == 0xD800


@pytest.mark.parametrize("tag", ["a, b", "a,b", "a &&", "a && b", "a b", "a;b", "a | b", "a\tb"])
def test_tag_that_looks_like_a_mistyped_list_is_one_tag_and_reported_as_suspicious(tag: str) -> None:
    some = TagFilter.parse(f"ok || {tag}")
    assert some.matches_tag(tag), "legal to send"
    assert some.suspicious_tags() == (tag,)


def test_ordinary_tags_are_not_suspicious() -> None:
    assert TagFilter.parse("created || order-paid_2.x:y/z || 订单").suspicious_tags() == ()
    assert TagFilter.parse("*").suspicious_tags() == ()
