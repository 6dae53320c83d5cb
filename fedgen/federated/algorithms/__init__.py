"""Client algorithms: what a client does besides its own steps."""
