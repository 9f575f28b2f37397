"""Edge probing: what a linear probe finds in each layer of a frozen encoder."""
