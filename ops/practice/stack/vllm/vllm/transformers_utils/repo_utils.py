"""From the name on the command line to a folder with a model."""

from pathlib import Path


class HFValidationError(ValueError):
    """A name that can be neither a folder nor a repository."""


HFValidationError.__module__ = "huggingface_hub.errors"


def get_model_path(model: str) -> str:
    """The folder itself. Raises HFValidationError where there is none: this server downloads nothing."""
    if Path(model).is_dir():
        return model
    raise HFValidationError(
        f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{model}'. Use `repo_type` argument if needed."
    )
