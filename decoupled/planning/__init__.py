"""The cost of a training step on a TPU slice, from its graph, without a TPU."""
