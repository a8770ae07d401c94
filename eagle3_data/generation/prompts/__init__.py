"""What is still to be asked and in which order: the prompt table, rendered ids, the queue."""
