"""What accept length do the live servers of a case reach, and which fault does it look like?"""
