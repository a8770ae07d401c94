"""What was answered, crash-safe: entries, the segment files that hold them, their index, the lock."""
