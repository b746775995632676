"""The torch executor: the reference implementation in fp32 on CPU, and what serves on a GPU, in bf16."""
