"""Settings: how they are declared once, and read from options, variables and files.

Here: declarations with limits, and the settings that all servers have. Not here: the settings of one server (`broker/config.py`,
`nameserver/config.py`) or of the SDK (`client/config.py`).

Read `settings.py` first, then `config.py`.
"""
