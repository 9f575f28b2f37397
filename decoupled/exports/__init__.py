"""What leaves the project: SavedModels and files of other libraries."""
