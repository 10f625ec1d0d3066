"""Models and how they are loaded."""
