"""From a task and its features to updates, checkpoints and an estimator."""
