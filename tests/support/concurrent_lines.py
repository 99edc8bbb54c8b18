"""The output of a support.worker_concurrent process."""

from collections import Counter
from pathlib import Path

from support.cluster import Cluster


class Lines:
    """The lines that concurrent consumers have written: (body, retries, result, wall ms)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[tuple[str, int, str, int]]:
        text = self.path.read_text() if self.path.exists() else ""
        rows = [line.split(" ") for line in text[: text.rfind("\n") + 1].splitlines()]
        return [(body, int(times), result, int(at_ms)) for body, times, result, at_ms in rows]

    def done(self) -> dict[str, int]:
        """Return body → number of successful calls."""
        return Counter(body for body, _, result, _ in self.all() if result == "done")


async def consumer(cluster: Cluster, name: str, *options: str) -> Lines:
    path = cluster.folder / f"{name}.lines"
    command = ["-m", "support.worker_concurrent", "--nameserver", cluster.nameservers, "--file", str(path), *options]
    await cluster.start(name, command, "worker.ready")
    return Lines(path)
