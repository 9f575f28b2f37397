"""The commands of `decoupled COMMAND ...`: the flags and the work of each."""
