"""The process and its surroundings: the console, signals, and folders that only the user can write."""
