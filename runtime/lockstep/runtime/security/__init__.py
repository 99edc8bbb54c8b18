"""Security: certificates and TLS, users and logins.

Here: contexts of TLS, the file of users, SCRAM, files that are read again when their content changes, and what is required of those who
connect. Not here: how connections are accepted and made (`runtime/connections`), and the request of a login (`runtime/requests/login.py`).

Read `server_security.py`, `security_watch.py` and `client_security.py` first, then `tls.py`, `scram.py` and `users.py`.
"""
