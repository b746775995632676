"""The detokenizer process: token ids to stable text."""
