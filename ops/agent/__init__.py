"""The agent: the Celery worker of a node, and its companion process."""
