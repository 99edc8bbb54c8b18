"""A Spark driver that copies one topic to another as a stream until it is killed. It prints a line for each completed micro-batch."""

import argparse
import json
import sys

from lockstep.spark.job import session


def main() -> None:
    options = parser().parse_args()
    spark = session("copy", "local[2,4]", {"spark.driver.host": "127.0.0.1", "spark.local.dir": options.scratch})
    rows = spark.readStream.format("lockstep").options(
        nameserver=options.nameserver, subscribe=options.source, startingOffsets="earliest", maxOffsetsPerTrigger="500", columns="key,value"
    )
    query = (
        rows.load()
        .writeStream.format("lockstep")
        .options(nameserver=options.nameserver, topic=options.target, frameRecords="20")
        .option("checkpointLocation", options.checkpoint)
        .start()
    )
    reported = -1
    while query.isActive and not query.awaitTermination(0.05):
        progress = query.lastProgress
        if progress is not None and progress.batchId > reported:
            reported = progress.batchId
            print(json.dumps({"event": "batch.done", "batch": reported, "rows": progress.numInputRows}), flush=True)
    sys.exit(str(query.exception()))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    for name in ("nameserver", "source", "target", "checkpoint", "scratch"):
        made.add_argument(f"--{name}", required=True)
    return made


if __name__ == "__main__":
    main()
