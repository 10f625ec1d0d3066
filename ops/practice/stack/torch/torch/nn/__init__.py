"""Practice torch.nn: modules that can be built and called."""

from typing import Any


class Module:
    """Calls `forward`, as the real one does."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Passes its first argument on."""
        return args[0] if args else None
