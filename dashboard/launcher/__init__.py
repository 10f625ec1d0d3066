"""`manage.py up`: one process that starts everything else, says what it starts, watches it, and leaves nothing behind.

`start.py` is the story in reading order; `earlier.py` deals with what an earlier start left; `children.py` starts, restarts and ends
processes; `node.py` makes this machine a node; `main_job.py` runs the redeploy and follows it; `terminal.py` writes the lines.
"""
