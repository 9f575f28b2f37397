"""Encoders with decoupled input and output embeddings, on Mesh-TensorFlow."""

import os

__version__ = "0.1.0"

# TensorFlow's C++ side reports missing GPUs as errors; what matters is raised.
LOG_LEVEL = "3"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", LOG_LEVEL)
