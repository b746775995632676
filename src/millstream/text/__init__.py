"""Tokenizer, chat template, incremental decoding and stop matching: pure, used by all three processes."""
