"""The load generator and the verifying pipeline: programs for `spark-submit`.

Here: the jobs of `scripts/load_generator.py` and `scripts/verify_load.py`. Not here: sources and sinks, which they use (`lockstep.spark`).

Read `load_job.py` first.
"""
