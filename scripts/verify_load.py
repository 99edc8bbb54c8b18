#!/usr/bin/env python3
"""Verify that all rows of a load are stored, once and in order: `spark-submit scripts/verify_load.py --help`. See docs/spark.md."""

import sys

try:
    from lockstep.spark.load.verify_job import main
except ImportError as error:
    print(
        f"failed: {error}: {sys.executable} lacks lockstep-mq[spark]. Activate the environment that has it (. .venv/bin/activate), "
        "or set PYSPARK_PYTHON to its python",
        file=sys.stderr,
    )
    sys.exit(3)  # could not run, as lockstep.spark.job says it

if __name__ == "__main__":
    sys.exit(main())
