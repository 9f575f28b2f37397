"""What is XTREME's alone: files, labels, predictions, languages, official averages."""
