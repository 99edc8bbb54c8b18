"""Generates the tables of docs/wire.md from the dataclasses. `PYTHONPATH=tests python tests/support/wire_page.py` rewrites them."""

import dataclasses
import enum
import types
import typing
from pathlib import Path
from typing import Any

from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.fields import camel
from lockstep.protocol.topics import queue
from support.wire_values import BODY_MODULES, REPLIES, REQUESTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire.md"
BEGIN, END = "<!-- tables: tests/support/wire_page.py -->", "<!-- end of tables -->"


def kind(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (some,) = [arg for arg in args if arg is not type(None)]
        return kind(some) + "?"
    if origin is tuple:
        return f"[{kind(args[0])}]"
    if origin is dict:
        return f"{{{kind(args[0])}: {kind(args[1])}}}"
    return str(hint.__name__)


def fields(cls: type | None) -> str:
    if cls is None:
        return "–"
    hints = typing.get_type_hints(cls)
    parts = []
    for field in dataclasses.fields(cls):
        name = field.metadata.get("wire") or camel(field.name)
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        needed = "" if required or kind(hints[field.name]).endswith("?") else "="
        parts.append(f"{name}{needed} {kind(hints[field.name])}")
    return ", ".join(parts)


def name(cls: type | None) -> str:
    return "–" if cls is None else cls.__name__


def render() -> str:
    lines = [BEGIN, "", "| code | request | header fields | body | response's fields | response's body |", "|---|---|---|---|---|---|"]
    for code in RequestCode:
        header, body = REQUESTS[code]
        reply_header, reply_body = REPLIES.get(code, (None, None))
        lines.append(f"| {code.value} | {code.name} | {fields(header)} | {name(body)} | {fields(reply_header)} | {name(reply_body)} |")
    lines += ["", "| code | response |", "|---|---|", *(f"| {code.value} | {code.name} |" for code in ResponseCode)]
    lines += ["", "| body | fields |", "|---|---|"]
    for cls in structures():
        if issubclass(cls, enum.Enum):
            lines.append(f"| {cls.__name__} | one of " + ", ".join(f"{member.value} {member.name}" for member in cls) + " |")
        else:
            lines.append(f"| {cls.__name__} | {fields(cls)} |")
    return "\n".join([*lines, "", END])


def structures() -> list[type]:
    found = [
        value
        for module in (queue, *BODY_MODULES)
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    return [cls for cls in found if cls is not queue.MessageQueue and not cls.__name__.startswith("_")]


def rewritten(text: str) -> str:
    return text[: text.index(BEGIN)] + render() + text[text.index(END) + len(END) :]


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
