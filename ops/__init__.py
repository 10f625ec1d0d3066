"""What happens on a GPU node: read it, change it, watch it, measure it.

Nothing below this package imports Django or `dashboard`, and nothing opens the console's database.
"""

from __future__ import annotations

__version__ = "0.1.0"
