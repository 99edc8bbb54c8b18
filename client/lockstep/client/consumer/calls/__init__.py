"""Calls: from the pull of a queue to the call of the listener and its result.

Here: the worker and the buffer of a held queue, the models that decide which call is next (ordered, concurrent, keys in parallel, polled),
the listener's calls, failed ones, retries and parked keys. Not here: whether the queue is held (`consumer/grants`).

Read `queue_worker.py`, `runner.py` and `call_loop.py`, then `ordered_runner.py` with `queue_runner.py`, or `concurrent_model.py`.
"""
