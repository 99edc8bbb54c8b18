"""The requests about messages of the waiting rooms: those that wait for any delay or until a time of day, and half messages.

Here: the handlers that recall a message, list those that wait, and commit and roll back half messages; the questions to producers that have
not said how a transaction has ended; and what all need to find a message. Not here: which ones wait (`broker/tables/timer_table.py` and
`transaction_table.py`), how one is stored (`broker/processors/sent_frames.py`), and the copy that ends its wait (`broker/delivery`).
"""
