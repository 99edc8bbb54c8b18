"""The changes that the dashboard can make, if it is allowed to: each change is planned, shown, confirmed and carried out.

Here: forms, their confirmation, and the outcomes of plans. Not here: what a change does
(`operations/changes`), which its command calls too.

Read `forms.py`, then `pages.py`.
"""
