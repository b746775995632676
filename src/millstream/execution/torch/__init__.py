"""The torch executor: the reference implementation, fp32 on CPU."""
