"""Pages as a person reads them."""

from __future__ import annotations

import re
from typing import Any


def text(response: Any) -> str:
    """What a reader sees: tags gone, white space folded."""
    assert response.status_code == 200, response.status_code
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", response.content.decode(), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).replace("&#x27;", "'").replace("&quot;", '"').split())
