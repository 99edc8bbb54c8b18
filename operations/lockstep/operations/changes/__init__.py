"""Changes of a cluster: topics, groups, offsets, layouts, dead letters.

Here: for each change what it would do (a plan), and the requests that do it. A plan raises OperationError, and changes nothing, if the
change would lose messages, order or progress that the caller has not agreed to lose. Not here: options and forms.

Read `operation.py`, then `topic_create.py` as an example; `layouts` is how queues move without a loss of order.
`catalogue.py` lists all changes.
"""
