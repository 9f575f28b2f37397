"""The parts specific to XTREME: files, labels, predictions, languages, averages."""
