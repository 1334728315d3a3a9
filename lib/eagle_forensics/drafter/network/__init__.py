"""The EAGLE-3 drafter in plain torch: its layers, its arithmetic, its unrolling."""
