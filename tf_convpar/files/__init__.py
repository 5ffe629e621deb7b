"""Files that are checked when they are read, and written whole."""
