"""The command `lockstep`: what people type.

Here: options, tables and JSON on a terminal, exit codes, signals, and the commands that are no operations (servers, bench, the live
views). Not here: what a command knows or changes (`operations`).

Read `main.py`, then `app.py` and one module of `commands`.
"""
