"""What do the served states cost the drafter, and which wiring made the text that a server served?"""
