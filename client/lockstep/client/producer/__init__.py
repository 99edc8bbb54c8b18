"""The producer: choice of the queue, batches, sequences, retries.

Here: the public class, its settings, hooks and results, the steps of each kind of send (`sends.py`), and the shell that carries out the
effects of the machines (`shell.py`). Not here: what is done with a send (`producer/machines`), and when (`producer/pacing`).

Read `producer.py`, then `sends.py` and `shell.py`.
"""
