"""What a command trains and evaluates: pre-training, fine-tuning; a run's folder."""
