from __future__ import annotations

import pytest

from dashboard import from_a_node


@pytest.mark.parametrize(("text", "value"), [
    ('{"a": [NaN, Infinity, -1e999, 1.5]}', {"a": [None, None, None, 1.5]}),
    ('{"a": [1' + "0" * 400 + ', -1' + "0" * 400 + ', 7, true]}', {"a": [None, None, 7, True]}),
    ('{"a": "x\\u0000y", "b": "\\ud800"}', {"a": "x\ufffdy", "b": "?"}),
    ('{"command": "vllm serve /m --api-key CANARY1", "api_key": "CANARY2"}',
     {"command": "vllm serve /m --api-key [redacted]", "api_key": "[redacted]"}),
    (b"\xff", None), ("[" * 100_000, None), ("", None),
])
def test_what_a_node_says_is_fit_for_a_database_or_no_json_at_all(text: str | bytes, value: object) -> None:
    if value is None:
        with pytest.raises(ValueError):
            from_a_node.read(text)
    else:
        assert from_a_node.read(text) == value
