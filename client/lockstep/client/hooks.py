"""How hooks are told: of sends (producer/hooks.py), of calls (consumer/hooks.py). RocketMQ: SendMessageHook, ConsumeMessageHook.

A hook looks on. What it raises is logged (`hook.failed`) and changes neither the send nor the consumption. Several are told in the order
in which they were added, before; in the opposite order, after.
"""

from collections.abc import Iterable
from typing import Protocol

from lockstep.runtime.log import get_logger

log = get_logger("client.hooks")


class Watched(Protocol):
    """What hooks are told of."""

    group: str


def hook_failed(group: str, hook: object, step: str, error: Exception) -> None:
    named = f"{type(hook).__module__}.{type(hook).__qualname__}"
    log.warning("hook.failed", group=group, hook=named, step=step, error=f"{type(error).__name__}: {error}", exc_info=error)


def tell(what: Watched, hooks: Iterable[object], step: str) -> None:
    """Calls this method of each hook."""
    for hook in hooks:
        try:
            getattr(hook, step)(what)
        except Exception as error:  # listener: a hook only looks on
            hook_failed(what.group, hook, step, error)
