"""Analyses of trained vocabularies and models: measurements, tables and plots."""
