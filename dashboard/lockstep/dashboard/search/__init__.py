"""Pages that search in brokers each time they are opened: messages by what they have, and those that wait.

Here: what a form asks for, limits of a search, and links to what follows. Not here: how brokers are searched (`operations/messages`).

Read `searches.py`, then `message_search.py`.
"""
