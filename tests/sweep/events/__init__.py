"""The events of a history, by who writes them.

    locks.py, progress.py, sends.py, parks.py             the recorder of the connections to brokers; wire.py has what they share
    universe.py                                           the universe: machines, processes, faults, the final reading
    producers.py, consumers.py, members.py, readers.py    the workload: its clients, the last two those of a broadcasting and a pull group

A *copy* of a message is stored by a broker itself: in `%RETRY%group` for another try, or in `%DLQ%group` permanently.
"""
