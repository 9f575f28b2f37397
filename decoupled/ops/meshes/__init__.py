"""The two mesh implementations, for CPUs and GPUs and for TPUs; stacks of slices."""
