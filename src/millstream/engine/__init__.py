"""A whole server's work in one process: `Engine`, for programs that want the model without HTTP."""
