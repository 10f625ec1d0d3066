"""Pages as a person reads them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any


def text(response: Any) -> str:
    """What a reader sees: tags gone, white space folded."""
    assert response.status_code == 200, response.status_code
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", response.content.decode(), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).replace("&#x27;", "'").replace("&quot;", '"').split())


class _Forms(HTMLParser):
    """All forms of a page, each as the fields that a browser would send, without its buttons."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[list[tuple[str, str]]] = []
        self.area: tuple[str, list[str]] | None = None
        self.select: tuple[str, str | None] | None = None  # its name, and the value that it has so far

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        name, kind = told.get("name", ""), told.get("type", "text")
        if tag == "form":
            self.forms.append([])
        elif tag == "input" and name and kind not in ("file", "submit") and (kind not in ("checkbox", "radio") or "checked" in told):
            self.forms[-1].append((name, told.get("value", "on" if kind == "checkbox" else "")))
        elif tag == "textarea":
            self.area = (name, [])
        elif tag == "select":
            self.select = (name, None)
        elif tag == "option" and self.select and (self.select[1] is None or "selected" in told):
            self.select = (self.select[0], told.get("value", ""))

    def handle_data(self, data: str) -> None:
        if self.area:
            self.area[1].append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self.area:
            self.forms[-1].append((self.area[0], "".join(self.area[1]).removeprefix("\n").replace("\n", "\r\n")))
            self.area = None
        elif tag == "select" and self.select:
            self.forms[-1].append((self.select[0], self.select[1] or ""))
            self.select = None


def form_with(response: Any, field: str) -> dict[str, list[str]]:
    """What a browser would send of the page's form that has this field, untouched: every name with all its values."""
    parser = _Forms()
    parser.feed(response.content.decode())
    found = next(form for form in parser.forms if any(name == field for name, _ in form))
    return {name: [value for other, value in found if other == name] for name, _ in found}
