"""Charts of the last hour, with the values that the script in the browser reads at a time."""

from dataclasses import dataclass

from markupsafe import Markup

from lockstep.operations.brokers.append_latency import BUCKETS, bound_name, quantile
from lockstep.operations.pictures.latency import latency_picture
from lockstep.operations.pictures.series import series_picture
from lockstep.operations.watch.latency import COLUMNS
from lockstep.operations.watch.watch import INTERVAL_MS, Watch

TREND = 120
"""Ticks of a small chart: ten minutes."""


@dataclass(frozen=True, slots=True)
class Chart:
    """The course of one figure. `chart.html` shows it."""

    title: str
    picture: Markup
    values: str
    """The values of the last ticks, separated by commas; one that is not known is empty."""
    ticks: int
    """The ticks that fill the width; the values are the last of them."""
    until_ms: int
    """When the last value was taken, by the wall clock."""
    step_ms: int
    highest: float | None
    seconds: bool
    """The values are durations in seconds."""


def chart(watch: Watch, series: str, title: str, *, milliseconds: bool = False) -> Chart:
    """Return the chart of a series. `milliseconds`: its values are durations, which are shown in seconds."""
    taken = watch.series.last(series)
    values = [None if value is None else value / 1000 for value in taken] if milliseconds else taken
    ticks = max(TREND, len(values))
    return Chart(
        title=title,
        picture=Markup(series_picture(values, title, width=360, height=72, ticks=ticks)),
        values=",".join("" if value is None else f"{value:.1f}".removesuffix(".0") for value in values),
        ticks=ticks,
        until_ms=watch.ticked_ms,
        step_ms=INTERVAL_MS,
        highest=max((value for value in values if value is not None), default=None),
        seconds=milliseconds,
    )


def trend(watch: Watch, series: str, title: str) -> Markup:
    """Return a small chart of the last ten minutes, for a row of a table."""
    return Markup(series_picture(watch.series.last(series, TREND), title, width=120, height=24, ticks=TREND))


@dataclass(frozen=True, slots=True)
class Latency:
    """How long the appends of a broker took in the last hour."""

    broker: str
    count: int
    half: str | None
    """The time within which half of them ended, to the next bound of their histogram; None if there was none."""
    most: str | None
    """That of 99 of 100."""
    slowest: str | None
    picture: Markup


def latency(watch: Watch, broker: str) -> Latency:
    """Return the append latency of a broker."""
    columns = watch.latency.of(broker)
    counts = [sum(column[bucket] for column in columns if column is not None) for bucket in range(BUCKETS)]
    half, most, slowest = (bound_name(quantile(counts, percent)) for percent in (50, 99, 100))
    title = f"{broker}: latency of appends, last hour"
    return Latency(broker, sum(counts), half, most, slowest, Markup(latency_picture(columns, COLUMNS, title)))
