"""The requests about messages that wait for any delay or until a time of day.

Here: the handlers that recall one and list them, and what both need to find a message. Not here: which ones wait
(`broker/tables/timer_table.py`), how one is stored (`broker/processors/sent_frames.py`) and delivered (`broker/delivery`).
"""
