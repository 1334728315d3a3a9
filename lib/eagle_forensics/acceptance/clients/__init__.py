"""How is a live server asked, and what do its counters say? One record for every engine and version."""
