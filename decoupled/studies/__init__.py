"""Studies: grids of runs as resumable jobs, the table of finished runs, statistics,
verdicts, and pages."""
