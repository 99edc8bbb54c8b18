"""How a layout changes while producers and consumers work: writes are held, the layout is proposed to brokers, and queues move.

Here: the steps, and the rules under which queues move without a loss of order (ordering.md 9.6). Not here: which changes an operator can
make (`topic_alter.py`, `broker_drain.py`), and what a layout is (`protocol/topics/layouts.py`).

Read `layout_publish.py` first, then `queue_move.py`; `drain.py` removes all queues of a broker.
"""
