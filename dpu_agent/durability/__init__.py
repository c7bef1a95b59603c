"""What an agent keeps from one start to the next, beside the blocks."""
