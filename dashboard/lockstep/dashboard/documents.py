"""Pages as JSON, with `?format=json`: what the commands print with --json, made by the same functions."""

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from lockstep.operations.explain.why_question import NothingToExplainError
from lockstep.operations.groups.group_query import UnknownGroupError, unknown_group
from lockstep.operations.groups.group_report import group_json
from lockstep.operations.text import json_text
from lockstep.operations.watch.cache import FIRST_S, CachedResult
from lockstep.operations.watch.group_look import GroupLook
from lockstep.protocol.errors import ConfigError, LocalProtocolError, LockstepError, TopicNotExistError, TransportError

V = TypeVar("V")


def error_status(error: LockstepError, otherwise: int) -> int:
    """Return 404 for what is not there, 400 for what can't be asked, and `otherwise` for another error."""
    if isinstance(error, UnknownGroupError | TopicNotExistError | NothingToExplainError):
        return 404
    return 400 if isinstance(error, ConfigError | LocalProtocolError) else otherwise


def wants_json(request: Request) -> bool:
    """Return whether the request asks for JSON rather than for a page."""
    return request.query_params.get("format") == "json"


def document(value: object, status: int = 200) -> Response:
    """Return the response with this value."""
    return Response(json_text(value) + "\n", status, {"cache-control": "no-store"}, "application/json")


def refusal(reason: object, status: int) -> Response:
    """Return the response for a document that can't be made, with the reason."""
    return document({"error": str(reason)}, status)


def answer_document(answer: CachedResult[V], made: Callable[[V], Any]) -> Response:
    """Return what `made` makes of an answer. 404 if there is no such group or topic, 400 if that can't be asked, and 503 if the cluster
    could not be asked now."""
    if answer.value is None or answer.request is not None or answer.error is not None:
        reason = answer.error or TransportError(f"the cluster has not answered within {FIRST_S:g} s")
        return refusal(reason, error_status(reason, 503))
    try:
        return document(made(answer.value))
    except LockstepError as error:
        return refusal(error, error_status(error, 503))


def group_document(group: str, found: GroupLook) -> dict[str, Any]:
    """Return a group as JSON. Raise UnknownGroupError if no broker knows it, and OperationError if some could not be asked."""
    if found.report is None:
        raise unknown_group(group, found.failed)
    return group_json(found.report, found.failed)
