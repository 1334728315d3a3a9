"""Which wiring was the drafter trained for? Candidates, the battery that tries them, the search among them."""
