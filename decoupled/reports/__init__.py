"""Tables, plots and pages of finished runs: sweeps, fine-tuning, the reproduction."""
