"""What people say of a run, and the files of other tools that they bring. It is checked again where it is stored (dashboard/run_edits.py)."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile

from dashboard.run_edits import LABEL_LENGTH, NOTES_LENGTH, TAG_LENGTH, TAGS_MOST, TARGET_MOST

TAGS_LENGTH = TAGS_MOST * (TAG_LENGTH + 2)


def tags_of(text: str) -> list[str]:
    """Tags as they are typed: words with commas between them."""
    return [tag.strip() for tag in text.split(",") if tag.strip()]


class RunForm(forms.Form):
    """Label, notes and tags of a run."""

    label = forms.CharField(required=False, max_length=LABEL_LENGTH, strip=True)
    notes = forms.CharField(required=False, max_length=NOTES_LENGTH, strip=True)
    tags = forms.CharField(required=False, max_length=TAGS_LENGTH, strip=True)

    def clean_tags(self) -> list[str]:
        found = tags_of(self.cleaned_data["tags"])
        if len(found) > TAGS_MOST:
            raise forms.ValidationError(f"At most {TAGS_MOST} tags")
        if long := next((tag for tag in found if len(tag) > TAG_LENGTH), None):
            raise forms.ValidationError(f"`{long[:TAG_LENGTH]}…` is longer than {TAG_LENGTH} characters")
        return found


class TargetForm(forms.Form):
    """The speed of a single stream that a service should have, in tok/s. Both empty: as the service's record says."""

    low = forms.FloatField(required=False, min_value=0.001, max_value=TARGET_MOST)
    high = forms.FloatField(required=False, min_value=0.001, max_value=TARGET_MOST)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if self.errors:
            return cleaned
        low, high = cleaned.get("low"), cleaned.get("high")
        if (low is None) != (high is None):
            raise forms.ValidationError("Give both numbers, or none")
        if low is not None and high is not None and low > high:
            raise forms.ValidationError("The lower number comes first")
        return cleaned

    def target(self) -> tuple[float, float] | None:
        low, high = self.cleaned_data.get("low"), self.cleaned_data.get("high")
        return None if low is None or high is None else (low, high)


class _Files(forms.ClearableFileInput):
    allow_multiple_selected = True


class _FilesField(forms.FileField):
    """One file or several, each as Django's own field has it."""

    def __init__(self, **more: Any) -> None:
        super().__init__(widget=_Files(), **more)

    def clean(self, data: Any, initial: Any = None) -> list[UploadedFile]:
        given = (list(data) or [None]) if isinstance(data, list | tuple) else [data]  # None: says that a file is required
        return [super(_FilesField, self).clean(one, initial) for one in given]


class ImportForm(forms.Form):
    """Result files of a tool. Those of one folder belong together (a summary and its requests)."""

    files = _FilesField(  # type: ignore[assignment]  # the stubs take it for the form's own files
        max_length=200, allow_empty_file=False, error_messages={
        "required": "Choose a file", "empty": "This file is empty", "max_length": "The name of this file is longer than 200 characters"})


def told(form: forms.Form) -> dict[str, str]:
    """What is wrong with each field, in words."""
    return {name: " ".join(str(error) for error in errors) for name, errors in form.errors.items()}
