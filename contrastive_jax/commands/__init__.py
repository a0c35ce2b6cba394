"""The modes of the command, a module each, and the commands that show configs."""
