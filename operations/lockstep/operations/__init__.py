"""Operations: what can be known and changed of a cluster. The library below the command line, the dashboard and TestCluster.

Here: the client of nameservers and brokers, reports, searches, explanations, changes and their plans, pictures. An operation prints
nothing, imports neither typer nor rich, and reports what happens meanwhile to a Reporter (`progress.py`). Not here: options, tables on a
terminal and exit codes (`cli`), pages and forms (`dashboard`).

Read `admin_client.py` first, then the folder of the subject: `groups`, `messages`, `brokers` (what can be known), `explain` (why a queue
does not progress), `changes` (what can be changed), `watch` (the last hour of a cluster), `pictures`.
"""
