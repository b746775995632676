"""Model files: where they are, what they say about themselves, and their tensors as arrays."""
