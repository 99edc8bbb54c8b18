"""Explanations: why a queue of a group does not progress (`lockstep why`).

Here: the question, the facts that are asked for, the pure function from facts to a cause, and its words. Not here: findings about a whole
cluster (`operations/brokers/diagnosis.py`).

Read `why.py` first: its table of causes.
"""
