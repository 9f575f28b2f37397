"""Parallel text: sentences with ids that are equal in all languages."""
