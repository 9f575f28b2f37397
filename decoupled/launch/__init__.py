"""How a command starts: flags, gin files, records of the start, its supervision."""
