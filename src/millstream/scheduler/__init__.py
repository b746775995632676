"""The scheduler process: who runs next, and who owns which KV page."""
