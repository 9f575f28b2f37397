"""What every other package imports: errors, files, processes, machine, libraries."""
