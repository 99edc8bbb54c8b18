"""One module a command, or a command and its closest relatives: options, and how the result is printed.

Not here: what a command reads or changes, which is a function of `lockstep.operations`.
"""
