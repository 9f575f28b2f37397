"""What all else rests on: errors, files, processes, the machine, the libraries."""
