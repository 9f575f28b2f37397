"""The two mesh implementations, for CPUs and for programs of XLA; stacks of slices."""
