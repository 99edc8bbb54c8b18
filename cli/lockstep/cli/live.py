"""Redraw the terminal in place, one screen after another."""

from collections.abc import AsyncIterator, Callable

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.live import Live

Screen = Callable[[ConsoleDimensions], RenderableType]
"""Returns the screen for a terminal of this size."""


async def show(screens: AsyncIterator[Screen]) -> None:
    """Show each screen until the next one is there, and at the end what the terminal has shown before."""
    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        async for screen in screens:
            live.update(screen(console.size), refresh=True)
