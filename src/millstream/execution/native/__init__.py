"""The native executor: our own CPU kernels for quantised weights. `find_native` says whether this machine can run it."""
