"""Calls hooks: of sends (producer/hooks.py) and of listener calls (consumer/hooks.py). RocketMQ: SendMessageHook, ConsumeMessageHook.

A hook only observes. Its errors are logged (`hook.failed`) and change neither the send nor the consumption. Hooks are called in the
order in which they were added before a send or call, and in the opposite order after it.
"""

from collections.abc import Iterable
from typing import Protocol

from lockstep.runtime.log import get_logger

log = get_logger("client.hooks")


class Watched(Protocol):
    """The send or listener call that a hook observes."""

    group: str


def hook_failed(group: str, hook: object, step: str, error: Exception) -> None:
    named = f"{type(hook).__module__}.{type(hook).__qualname__}"
    log.warning("hook.failed", group=group, hook=named, step=step, error=f"{type(error).__name__}: {error}", exc_info=error)


def call_hooks(what: Watched, hooks: Iterable[object], step: str) -> None:
    """Call this method of each hook."""
    for hook in hooks:
        try:
            getattr(hook, step)(what)
        except Exception as error:  # listener: a hook only observes
            hook_failed(what.group, hook, step, error)
