"""Modes of the command line, one module each, and the commands that show configs."""
