"""Which tensor is this: its boundary, its state, complete or partial, and how sure.

`identify` answers for every slot of a dump or capture; `findings` turns the answers into findings.
"""
