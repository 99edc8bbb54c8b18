"""A dashboard in the browser: what the brokers, topics and groups of a cluster do now, and did in the last hour. docs/dashboard.md.

`lockstep dashboard` runs it, or a program mounts it: `app.mount("/lockstep", Dashboard("127.0.0.1:9876").app)`.
"""

from lockstep.runtime.extras import with_advice

try:
    from lockstep.dashboard.dashboard import Dashboard
except ModuleNotFoundError as error:
    raise with_advice(error) from None

__all__ = ["Dashboard"]
