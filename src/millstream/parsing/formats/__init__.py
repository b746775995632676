"""One file a family of models: how it writes tool calls and reasoning, with examples that are tests."""
