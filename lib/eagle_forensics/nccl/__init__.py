"""Question 05: is the interconnect the lever, are its settings live, and what would prove a better one?

Importing this package costs a few milliseconds: standard library only.
"""
