"""A dashboard in the browser: what the brokers, topics and groups of a cluster do now, and did in the last hour. docs/dashboard.md.

Here: pages, forms, words of other languages, and who may ask. Not here: what is shown or changed (`operations`).

Read `server.py`, then `views.py`.
"""

from lockstep.runtime.extras import with_advice

try:
    from lockstep.dashboard.dashboard import Dashboard
except ModuleNotFoundError as error:
    raise with_advice(error) from None

__all__ = ["Dashboard"]
