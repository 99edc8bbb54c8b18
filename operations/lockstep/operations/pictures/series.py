"""The course of a figure as a small chart: an area and a line over 0, with gaps where it is not known."""

from collections.abc import Iterator, Sequence

from lockstep.operations.pictures.svg import document, element

Point = tuple[float, float]


def series_picture(values: Sequence[float | None], title: str, *, width: int = 240, height: int = 48, ticks: int | None = None) -> str:
    """Return the chart as SVG without a style sheet. `ticks`: the values that fill the width, if there may be fewer."""
    highest = max((value for value in values if value is not None), default=0) or 1
    count = max(2, ticks or len(values))
    first = count - len(values)

    def point(index: int, value: float) -> Point:
        return (first + index) * (width - 2) / (count - 1) + 1, height - 1 - max(0.0, value) * (height - 4) / highest

    content = []
    for run in _runs(values):
        points = [point(index, value) for index, value in run]
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        if len(points) == 1:
            content.append(element("circle", cx=points[0][0], cy=points[0][1], r=1.2, class_="course-point"))
            continue
        content.append(
            element("path", d=f"M{points[0][0]:.1f} {height - 1}L{line}L{points[-1][0]:.1f} {height - 1}Z", class_="course-area")
        )
        content.append(element("path", d=f"M{line}", class_="course"))
    known = [value for value in values if value is not None]
    said = f"now {known[-1]:,.0f}, highest {max(known):,.0f}" if known else "not known"
    return document(width, height, title, said, content, style=None, preserveAspectRatio="none")


def _runs(values: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """Yield the runs of known values, each with its place."""
    run: list[tuple[int, float]] = []
    for index, value in enumerate(values):
        if value is not None:
            run.append((index, value))
        elif run:
            yield run
            run = []
    if run:
        yield run
