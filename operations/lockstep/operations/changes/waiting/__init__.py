"""Changes of messages that wait.

Here: the recall of timers, and the decision of transactions. Not here: the lists of what waits (`operations/messages`).
"""
