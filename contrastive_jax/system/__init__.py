"""Process and system: console, signals, limits, and folders that only the user can write."""
