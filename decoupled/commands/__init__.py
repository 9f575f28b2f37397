"""The commands of `decoupled COMMAND ...`: each its flags and its work."""
