"""Calls hooks: of sends (producer/hooks.py) and of listener calls (consumer/calls/hooks.py). RocketMQ: SendMessageHook, ConsumeMessageHook.

A hook only observes. Its errors are logged (`hook.failed`) and change neither the send nor the consumption. Hooks are called in the
order in which they were added before a send or call, and in the opposite order after it.
"""

from collections.abc import Iterable
from typing import Protocol

from lockstep.protocol.object_text import name_of, text_of
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.hooks")


class Watched(Protocol):
    """The send or listener call that a hook observes."""

    group: str


def hook_failed(group: str, hook: object, step: str, error: BaseException) -> None:
    log.warning("hook.failed", group=group, hook=name_of(type(hook)), step=step, error=text_of(error), exc_info=error)


def call_hooks(what: Watched, hooks: Iterable[object], step: str) -> None:
    """Call this method of each hook. Only KeyboardInterrupt and SystemExit are raised, as by `call_isolated`."""
    for hook in hooks:
        try:
            getattr(hook, step)(what)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # listener: a hook only observes
            hook_failed(what.group, hook, step, error)
