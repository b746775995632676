"""Logging, and what else shows the server at work."""
