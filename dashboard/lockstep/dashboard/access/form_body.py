"""The fields of a form that a browser has sent, with limits."""

import asyncio
from urllib.parse import parse_qsl

from starlette.requests import Request

from lockstep.protocol.errors import LockstepError

FORM_BYTES_MAX = 256 * 1024
FORM_S = 10
"""How long a form may take to come."""
FIELDS_MAX = 32


class FormError(LockstepError):
    """The body of a request is not a form of these pages."""


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of the form in the request's body. Raise FormError for another body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise FormError(f"a form is expected, not {kind[:40]!r}")
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > FORM_BYTES_MAX:
                    raise FormError(f"the form is larger than {FORM_BYTES_MAX // 1024} KiB: send large messages with `lockstep send`")
    except TimeoutError:
        raise FormError(f"the form has not come within {FORM_S} s") from None
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise FormError(f"the form can't be read: {error}") from None
    return dict(pairs)
