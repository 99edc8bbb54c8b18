"""Who may use the dashboard: what is checked before a page, the login of browsers, and their sessions.

Here: addresses and origins of requests, logins, sessions, and the body of a form. Not here: what a page shows.

Read `guard.py`, then `login.py`, then `sessions.py`.
"""
