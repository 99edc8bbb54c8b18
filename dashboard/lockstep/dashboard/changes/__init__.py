"""The changes that the dashboard can make, if it is allowed to: each change is planned, shown, confirmed and carried out as its command
does it."""
