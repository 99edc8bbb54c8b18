"""Security of connections: certificates and TLS.

Here: contexts of TLS, files that are read again when their content changes, and the words for what can go wrong with a certificate. Not
here: how connections are accepted and made (`runtime/connections`).

Read `tls.py` first, then `watched_files.py`.
"""
