#!/usr/bin/env python3
"""Proves what the load generator sent is there, once and in order: `spark-submit scripts/verify_load.py --help`. See docs/spark.md."""

import sys

try:
    from lockstep.spark.verify_job import main
except ImportError as error:
    sys.exit(
        f"{error}: {sys.executable} lacks lockstep-mq[spark]. Activate the environment that has it (. .venv/bin/activate), "
        "or set PYSPARK_PYTHON to its python"
    )

if __name__ == "__main__":
    sys.exit(main())
