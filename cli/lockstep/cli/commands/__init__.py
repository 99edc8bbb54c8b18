"""One module a command, or a command and its closest relatives: options, and how the result is printed.

What a command does besides is a function of `lockstep.operations`.
"""
