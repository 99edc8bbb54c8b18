"""One class a family of request codes: decode, ask a table, answer."""
