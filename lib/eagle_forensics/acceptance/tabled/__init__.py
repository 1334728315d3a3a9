"""What runs of the measurements table tell that differ in one thing: load, context, a switch, the version, the head."""
