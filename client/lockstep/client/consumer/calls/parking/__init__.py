"""Parked keys of one grant (docs/ordering.md 15): the rules as a state machine, and the shell that carries out its effects.

- `machine.py`: which messages of the main flow are left out, and the replays. Pure.
- `park_request.py`: what the response to a PARK means. Pure.
- `replay.py`: one key that is replayed, and the stages of that. Pure.
- `effects.py`: what the machine asks of its shell.
- `shell.py`: requests, pauses and reports, for the runner of the grant.

Not here: sending a PARK, which is a result of a failed call (`calls/failed_calls.py`).
"""
