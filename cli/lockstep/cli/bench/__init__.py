"""lockstep bench: measure rates and latencies as users see them with one producer process, one consumer process and one broker process.

Not here: the comparison with other brokers (`bench/compare`). Read `run.py` first.
"""
