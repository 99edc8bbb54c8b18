"""What RocketMQ's own clients and tools send, where it differs from native requests (docs/rocketmq.md).

Here: processors of the requests of its tools and consoles, its forms of bodies and HEART_BEAT, and what its clients expect of a broker:
retries that they send themselves, replies, traces, statistics. Not here: its sends (`broker/processors/send_message.py`), locks without an
epoch (`broker/groups/legacy_clients.py`), and its directories (`broker/rocketmq_store`).

Read `connections.py` and `heartbeat.py` first; each of the other files is read by itself.
"""
