"""What trained vocabularies and models are like: measurements, tables and plots."""
