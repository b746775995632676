"""Anthropic's Messages API: requests in, messages and events out."""
