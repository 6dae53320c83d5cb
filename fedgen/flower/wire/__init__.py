"""Messages between server and clients: their forms, checks and transport; nothing is unpickled."""
