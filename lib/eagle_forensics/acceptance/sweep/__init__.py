"""Which number of draft steps pays? Measured on a server started at each."""
