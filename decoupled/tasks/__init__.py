"""What a model is trained for: features in, loss, sums and predictions out."""
