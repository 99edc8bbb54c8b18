"""The broker: it stores messages, and gives each queue of an ordered group to one member at a time.

Here: the start and the stop, the settings, the registration with nameservers, and the durable state with its journal. A subject that has
several files is in a folder: requests (`processors`, `classic`), groups (`groups`), messages that the broker stores itself (`delivery`),
the log on disk (`store`), the other tables (`tables`), figures for operators (`figures`), and RocketMQ's directories (`rocketmq_store`).
Not here: frames, headers and records (`protocol`), and connections (`runtime`).

Read `app.py` first, then `running.py`, which connects the parts. Then follow a message: `processors/send.py`, `store/store.py`,
`processors/pull.py`, `groups/coordination.py`. `state.py` has what a restart restores.
"""
