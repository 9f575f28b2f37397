"""Grids of runs: models, tasks and seeds, as jobs that can be resumed."""
