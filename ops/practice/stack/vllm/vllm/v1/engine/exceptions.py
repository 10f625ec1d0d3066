"""What the engine's client raises."""


class EngineDeadError(Exception):
    """The engine's process has ended."""

    def __init__(self) -> None:
        super().__init__("EngineCore encountered an issue. See stack trace (above) for the root cause.")
