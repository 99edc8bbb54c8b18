"""Topics: their layouts with versions, their queues, and which member of a group gets which queue.

Here: values and rules about layouts that servers and clients share. Not here: which layout is in force (`broker/tables/topic_table.py`,
`nameserver`), and messages.

Read `queue.py` first, then `layouts.py`.
"""
