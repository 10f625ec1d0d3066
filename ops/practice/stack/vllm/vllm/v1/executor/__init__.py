"""Worker processes, one for each GPU."""
