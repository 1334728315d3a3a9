"""Question 02: is the drafter itself fine, and which wiring was it trained for?

An EAGLE-3 drafter in plain torch, unrolled on recorded sequences as serving unrolls it; the battery of wirings; the
walk that turns correct steps into verify rounds; what accept length to expect live. Importing this package imports
no torch; its modules do.
"""
