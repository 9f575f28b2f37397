"""What a training step will take on a TPU slice, from its graph, without a TPU."""
