"""SavedModels of trained models, which load without this project."""
