"""The paper's claims, tried at a small scale and decided by statistics."""
