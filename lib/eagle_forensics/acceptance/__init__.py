"""Question 04: what is the live accept length, and can speculation win at all at this cost?

Everything here works from the measurements table alone (one row a measured run); live clients produce the same rows.
"""
