"""How a server is started and spoken to."""
