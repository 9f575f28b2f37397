"""Documents -> token ids -> features."""
