"""The books of the KV cache: pages and the prefix tree, as integers."""
