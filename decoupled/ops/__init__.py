"""Mesh-TensorFlow operations of our own, each with its gradient and its lowering."""
