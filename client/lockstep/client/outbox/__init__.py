"""Messages that a transaction of the user's database sends: `Outbox` writes them into a table, and a `Relay` sends what is there.

Here: the statements on the two tables (`table.py`), the program that sends (`relay.py`), and how it gets its transactions
(`transactions.py`). Not here: how statements are executed by each library (`database.py`), and frames and sequences (`producer`).

Read `relay.py` first; ADR 51 says why each message is stored once.
"""

from lockstep.client.outbox.relay import Relay
from lockstep.client.outbox.table import Outbox

__all__ = ["Outbox", "Relay"]
