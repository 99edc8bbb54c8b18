"""One class for each family of request codes. A handler decodes nothing itself: it calls a table and returns the outcome."""
