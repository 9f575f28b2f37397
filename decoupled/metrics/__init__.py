"""Metrics: numbers from labels and predictions in memory, without TensorFlow."""
