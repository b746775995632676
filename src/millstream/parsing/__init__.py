"""Reasoning and tool calls in a model's text: one incremental pipeline, whose result does not depend on the cuts."""
