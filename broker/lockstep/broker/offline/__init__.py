"""A store that no broker has open, for commands that change nothing: its state, and what a start would do with it."""
