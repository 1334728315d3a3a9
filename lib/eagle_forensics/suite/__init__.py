"""The suite: run folders, headless execution of the five notebooks, the post-mortem, comparison and index of runs."""
