"""Print the progress of Spark jobs: what is being done, and how many tasks of the running stages have ended."""

import asyncio

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lockstep.runtime.event_loop import new_event_loop
from lockstep.runtime.host import Host
from lockstep.spark.job import print_status

PRINT_EVERY_S = 2.0


class StageProgress:
    """A daemon thread that asks Spark's status tracker. It prints nothing while nothing changes."""

    def __init__(self, spark: SparkSession, host: Host) -> None:
        self.phase = "starting"
        """What is being done."""
        self._tracker = spark.sparkContext.statusTracker()
        self._host = host
        self._ended = False

    def start(self) -> None:
        self._host.threads.start_daemon(self._watch, "progress")

    def stop(self) -> None:
        self._ended = True

    def _watch(self) -> None:
        printed, loop = "", new_event_loop()
        while not self._ended:
            try:
                line = self._line()
            except (Py4JError, OSError):
                return  # Spark has ended, which the job itself reports
            if line != printed and not self._ended:
                print_status(line)
                printed = line
            loop.run_until_complete(asyncio.sleep(PRINT_EVERY_S))

    def _line(self) -> str:
        stages = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
        counts = [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None]
        tasks = f", {sum(done for done, _ in counts)} of {sum(total for _, total in counts)} tasks" if counts else ""
        return f"  {self.phase}{tasks}"
