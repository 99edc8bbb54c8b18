"""Imports structlog without rich. A server imports this module before any other of lockstep.

structlog imports rich if it is installed, for tracebacks on a terminal. That takes 5 MB of memory, and servers print their own. In a
program that uses the client, structlog remains as that program imports it.
"""

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
