"""Message catalogs of installed packages: text, and a task that is held out."""
