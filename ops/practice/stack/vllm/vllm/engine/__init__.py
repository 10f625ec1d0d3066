"""What a server is told to do: its arguments."""
