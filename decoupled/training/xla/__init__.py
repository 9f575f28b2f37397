"""Training on what XLA's own clients compute: GPUs, today's TPUs, and CPU devices."""
