"""What leaves the project: SavedModels that load without it."""
