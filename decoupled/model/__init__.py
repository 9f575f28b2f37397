"""Features to mesh graph: one model for pre-training, fine-tuning and evaluation."""
