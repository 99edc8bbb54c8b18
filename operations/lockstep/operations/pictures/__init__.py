"""Pictures as SVG text, made by pure functions.

Colours are classes, which the style sheet of a page, or the one in a file, paints. Here: who held which queue when, members, courses of
figures. Not here: what they show (`operations/groups`, `operations/watch`).

Read `svg.py`, then `owners.py`.
"""
