"""Convert frozen dataclasses to plain values (maps, lists, ints, strings, bytes) and back, for header fields and structured bodies.

A field has its name in camelCase on the wire, or the name of `field(metadata={"wire": "clientID"})`. None is omitted. Maps are written
sorted by name, so that equal values give equal bytes. Unknown names are ignored, since a later version may send more. A missing or
mistyped value raises RemoteProtocolError with the class, the field and the expected type.

RocketMQ's clients write header fields as text and structured bodies as JSON. For them there are `from_text`, which also reads a number or a
boolean from text and the other way round, and `to_text` and `to_java`, which leave out the fields that they do not know
(`field(metadata={"native": True})`).
"""

import dataclasses
import enum
import itertools
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar, cast

from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.native import kernels

T = TypeVar("T")
Convert = Callable[[Any], Any]

_MISSING = object()
_DIGITS_MAX = 20
"""Characters of a number in text: −2⁶³ has as many."""
_INT64, _UINT64 = 1 << 63, 1 << 64


def to_plain(value: object) -> dict[str, Any]:
    """Return a dataclass as a map of wire names to plain values."""
    kind: Any = type(value)
    return cast(dict[str, Any], _encoder(kind)(value))


def from_plain(cls: type[T], plain: object) -> T:
    """Return the dataclass `cls` from a map of wire names. Raise RemoteProtocolError if the map does not match it."""
    kind: Any = cls
    return cast(T, _decoder(kind)(plain))


def unknown_names(cls: type, plain: object) -> list[str]:
    """Return the names, as Class.name, that `from_plain` has ignored in a map and in the maps within it."""
    find = _ignored(cls)
    return [] if find is None else list(find(plain))


def from_text(cls: type[T], plain: object) -> T:
    """Return the dataclass `cls` from a map of wire names as RocketMQ's clients write it. Raise RemoteProtocolError if it does not fit."""
    kind: Any = cls
    return cast(T, _decoder(kind, text=True)(plain))


def to_java(value: object) -> dict[str, Any]:
    """Return a dataclass as a map of wire names to plain values, without what only native clients know."""
    kind: Any = type(value)
    return cast(dict[str, Any], _encoder(kind, java=True)(value))


def to_text(header: object) -> dict[str, str]:
    """Return the fields of a header as text, without what only native clients know."""
    return {name: text_of(value) for name, value in to_java(header).items()}


def text_of(value: object) -> str:
    """Return a scalar as RocketMQ's clients write it: "true", "7". Raise LocalProtocolError for bytes."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise LocalProtocolError(f"a {type(value).__name__} has no form as text")


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _wire_name(field: "dataclasses.Field[Any]") -> str:
    return cast(str, field.metadata.get("wire") or camel(field.name))


def _identity(value: Any) -> Any:
    return value


def _fail(where: str, expected: str, got: object) -> RemoteProtocolError:
    """Return the error. `got` may be deep or large, so only short scalars are shown."""
    shown = ""
    if isinstance(got, str | bytes):
        shown = f" {got[:60]!r}"
    elif isinstance(got, float) or (isinstance(got, int) and got.bit_length() <= 64):
        shown = f" {got!r}"
    return RemoteProtocolError(f"{where}: expected {expected}, got {type(got).__name__}{shown}")


@cache
def _encoder(kind: Any, *, java: bool = False) -> Convert:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = _encoder(_not_none(args), java=java)
        return _identity if inner is _identity else (lambda value: None if value is None else inner(value))
    if origin is tuple:
        inner = _encoder(args[0], java=java)
        return list if inner is _identity else (lambda value: [inner(item) for item in value])
    if origin in (dict, Mapping):
        inner = _encoder(args[1], java=java)
        return lambda value: {key: inner(value[key]) for key in sorted(value)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return lambda value: value.value
    if dataclasses.is_dataclass(kind):
        return _dataclass_encoder(cast(type, kind), java)
    return _identity


def _dataclass_encoder(cls: type, java: bool) -> Convert:
    hints = typing.get_type_hints(cls)
    written = [f for f in dataclasses.fields(cls) if not (java and f.metadata.get("native"))]
    plan = [(f.name, _wire_name(f), _encoder(hints[f.name], java=java)) for f in written]
    if len(plan) > 1 and all(convert is _identity for _, _, convert in plan):
        wires, values = [wire for _, wire, _ in plan], operator.attrgetter(*(name for name, _, _ in plan))
        return lambda value: {wire: item for wire, item in zip(wires, values(value), strict=True) if item is not None}

    def encode(value: Any) -> dict[str, Any]:
        plain = {}
        for name, wire, convert in plan:
            item = getattr(value, name)
            if item is not None:
                plain[wire] = item if convert is _identity else convert(item)
        return plain

    return encode


def _not_none(args: tuple[Any, ...]) -> Any:
    (kind,) = [arg for arg in args if arg is not type(None)]
    return kind


@cache
def _decoder(kind: Any, where: str = "", *, text: bool = False) -> Convert:
    where = where or getattr(kind, "__name__", str(kind))
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = _decoder(_not_none(args), where, text=text)
        if text and _not_none(args) is not str:
            return lambda value: None if value is None or value == "" else inner(value)
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _list_decoder(_decoder(args[0], where, text=text), where)
    if origin in (dict, Mapping):
        return _map_decoder(_decoder(args[0], where, text=text), _decoder(args[1], where, text=text), where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum_text_decoder(kind, where) if text else _enum_decoder(kind, where)
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(cast(type, kind), text)
    return _TEXT_DECODERS.get(kind, _scalar_decoder)(kind, where) if text else _scalar_decoder(cast(type, kind), where)


@cache
def _ignored(kind: Any) -> Callable[[Any], Iterable[str]] | None:
    """Return what yields the ignored names of a value of this type, or None if there can be none."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = _ignored(_not_none(args))
        return None if inner is None else partial(_ignored_within, inner, lambda value: () if value is None else (value,))
    if origin is tuple:
        inner = _ignored(args[0])
        return None if inner is None else partial(_ignored_within, inner, iter)
    if origin in (dict, Mapping):
        inner = _ignored(args[1])
        return None if inner is None else partial(_ignored_within, inner, dict.values)
    if not dataclasses.is_dataclass(kind):
        return None
    cls = cast(type, kind)
    hints = typing.get_type_hints(cls)
    known = {_wire_name(f): _ignored(hints[f.name]) for f in dataclasses.fields(cls)}
    within = [(name, inner) for name, inner in known.items() if inner is not None]

    def find(value: Any) -> list[str]:
        found = [] if value.keys() <= known.keys() else [f"{cls.__name__}.{name}" for name in value if name not in known]
        for name, inner in within:
            if name in value:
                found += inner(value[name])
        return found

    return find


def _ignored_within(find: Callable[[Any], Iterable[str]], values: Callable[[Any], Iterable[Any]], value: Any) -> Iterator[str]:
    return itertools.chain.from_iterable(map(find, values(value)))


def _scalar_decoder(kind: type, where: str) -> Convert:
    def decode(value: Any) -> Any:
        if type(value) is not kind:
            raise _fail(where, kind.__name__, value)
        return value

    return decode


def _int_text_decoder(kind: type, where: str) -> Convert:
    def decode(value: Any) -> Any:
        found = value
        if type(value) is str and len(value) <= _DIGITS_MAX:
            try:
                found = int(value)
            except ValueError:
                raise _fail(where, "int", value) from None
        if type(found) is not int or not -_INT64 <= found < _UINT64:
            raise _fail(where, "int", value)
        return found

    return decode


def _bool_text_decoder(kind: type, where: str) -> Convert:
    """Read a boolean as Java's Boolean.parseBoolean, where every text but "true" is false, and "1" as true: so writes the C++ client."""

    def decode(value: Any) -> Any:
        if type(value) is bool:
            return value
        if type(value) is not str:
            raise _fail(where, "bool", value)
        return value.lower() in ("true", "1")

    return decode


def _str_text_decoder(kind: type, where: str) -> Convert:
    def decode(value: Any) -> Any:
        if type(value) is str:
            return value
        if type(value) not in (int, float, bool):
            raise _fail(where, "str", value)
        return text_of(value)

    return decode


def _float_text_decoder(kind: type, where: str) -> Convert:
    def decode(value: Any) -> Any:
        try:
            if type(value) in (int, float, str):
                return float(value)
        except (ValueError, OverflowError):
            pass
        raise _fail(where, "float", value)

    return decode


_TEXT_DECODERS: Mapping[type, Callable[[type, str], Convert]] = {
    int: _int_text_decoder,
    bool: _bool_text_decoder,
    str: _str_text_decoder,
    float: _float_text_decoder,
}


def _enum_text_decoder(kind: type[enum.Enum], where: str) -> Convert:
    """Read a member by its value, its name, or its place in the order of Java's enum, which is that of the members."""
    members = list(kind)
    known: dict[Any, enum.Enum] = {str(place): member for place, member in enumerate(members)}
    known |= {member.name: member for member in members} | {str(member.value): member for member in members}
    expected = "one of " + ", ".join(str(member.value) for member in members)

    def decode(value: Any) -> Any:
        found = known.get(str(value)) if type(value) in (str, int) else None
        if found is None:
            raise _fail(where, expected, value)
        return found

    return decode


def _list_decoder(inner: Convert, where: str) -> Convert:
    def decode(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _fail(where, "list", value)
        return tuple(inner(item) for item in value)

    return decode


def _map_decoder(key: Convert, inner: Convert, where: str) -> Convert:
    def decode(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _fail(where, "map", value)
        return {key(name): inner(item) for name, item in value.items()}

    return decode


def _enum_decoder(kind: type[enum.Enum], where: str) -> Convert:
    members = {member.value: member for member in kind}
    plain_types = {type(value) for value in members}
    expected = "one of " + ", ".join(str(value) for value in members)

    def decode(value: Any) -> Any:
        if type(value) not in plain_types or value not in members:
            raise _fail(where, expected, value)
        return members[value]

    return decode


def _exact(kind: Any) -> Any:
    """Return the type whose values need no conversion call: a scalar, also if None is allowed. Otherwise return None."""
    args = typing.get_args(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = _not_none(args)
    return kind if kind in (str, int, bool, bytes, float) else None


def _plan(cls: type, text: bool) -> list[tuple[str, Any, Convert, Any]]:
    """Return (name on the wire, exact type or None, conversion, default or _MISSING) of each field."""
    hints = typing.get_type_hints(cls)
    plan = []
    for f in dataclasses.fields(cls):
        default: Any = f.default if f.default is not dataclasses.MISSING else _MISSING
        if f.default_factory is not dataclasses.MISSING:
            default = f.default_factory()
        elif default is _MISSING and type(None) in typing.get_args(hints[f.name]):
            default = None
        exact = str if text and hints[f.name] is str else None if text else _exact(hints[f.name])
        convert = _decoder(hints[f.name], f"{cls.__name__}.{_wire_name(f)}", text=text)
        plan.append((_wire_name(f), exact, convert, default))
    return plan


def _dataclass_decoder(cls: type, text: bool) -> Convert:
    plan = _plan(cls, text)
    kernel = None if text else _kernel(cls, plan)

    def decode(value: Any) -> Any:
        if kernel is not None and type(value) is dict:
            made = kernel(value)
            if made is not None:
                return made
        if not isinstance(value, dict):
            raise _fail(cls.__name__, "map", value)
        items = []
        for wire, exact, convert, default in plan:
            item = value.get(wire, _MISSING)
            if type(item) is exact:
                items.append(item)
            elif item is not _MISSING:
                items.append(convert(item))
            elif default is not _MISSING:
                items.append(default)
            else:
                raise RemoteProtocolError(f"{cls.__name__}.{wire}: missing")
        return cls(*items)

    return decode


def _kernel(cls: type, plan: Sequence[tuple[str, Any, Convert, Any]]) -> Convert | None:
    """Return the compiled form of a decoder, if there is one for this class: it has slots for its fields and nothing else to do.

    It assigns to an instance of a class with the same slots, which takes a third of the time of a frozen dataclass's `__init__`.
    """
    attributes = [field.name for field in dataclasses.fields(cls)]
    slots = cls.__dict__.get("__slots__")
    if kernels is None or not attributes or slots != tuple(attributes) or cls.__bases__ != (object,) or hasattr(cls, "__post_init__"):
        return None
    draft = type(cls.__name__, (), {"__slots__": slots})
    each = zip(attributes, plan, strict=True)
    fields = [(attribute, wire, exact, default is _MISSING, default) for attribute, (wire, exact, _, default) in each]
    return kernels.FieldPlan(cls, draft, fields).read
