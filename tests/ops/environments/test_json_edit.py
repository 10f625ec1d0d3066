from __future__ import annotations

import json
import random

import pytest

from ops.environments import json_edit
from ops.jobs.errors import BadInput


@pytest.mark.parametrize(("text", "key", "left"), [
    ('{"a": 1, "b": 2}', "a", '{"b": 2}'), ('{"a": 1, "b": 2}', "b", '{"a": 1}'), ('{"a": 1}', "a", "{}"), ('{ "a" : 1 }\n', "a", "{}\n"),
    ('{"a": {"x": 1, "y": [1, 2]}}', "a.y", '{"a": {"x": 1}}'), ('{"a": 1, "a": 2, "b": 3}', "a", '{"b": 3}'), ('{"a": 1}', "b", '{"a": 1}'),
    ('{"a": 1}', "a.b", '{"a": 1}'), ('{"l": [{"k": 1}]}', "l.0.k", '{"l": [{}]}'),
    ('{\r\n\t"a": 1,\r\n\t"b": 2\r\n}', "b", '{\r\n\t"a": 1\r\n}'), ('{"é": 1, "\\u0061": 2}', "a", '{"é": 1}'),
])
def test_a_key_is_taken_out_and_the_rest_stays_as_it_was(text: str, key: str, left: str):
    assert json_edit.remove(text, key) == left


@pytest.mark.parametrize(("text", "key", "value", "now"), [
    ('{"a": 1.0}', "a", 2, '{"a": 2}'), ('{"a": 1, "a": 2}', "a", 3, '{"a": 1, "a": 3}'), ("{}", "a", True, '{"a": true}'),
    ('{"a":1,"b":2}', "c", None, '{"a":1,"b":2,"c":null}'), ('{"a": {}}', "a.b.c", 1, '{"a": {"b": {"c": 1}}}'),
    ('{"l": [1, 2]}', "l.1", 9, '{"l": [1, 9]}'),
    ('{\r\n  "a": 1\r\n}\r\n', "b", {"c": 1}, '{\r\n  "a": 1,\r\n  "b": {\r\n    "c": 1\r\n  }\r\n}\r\n'),
    ('{\n  "a": {}\n}', "a.b", 1, '{\n  "a": {\n    "b": 1\n  }\n}'),
])
def test_a_value_is_put_in_the_files_own_way(text: str, key: str, value: object, now: str):
    assert json_edit.put(text, key, value) == now


def test_what_cannot_be_edited_is_refused():
    for text, key in (('{"a": 1', "b"), ("[1]", "a"), ('{"a": 1}', "a.b"), ('{"a" 1}', "b"), ("", "b")):
        with pytest.raises(BadInput):
            json_edit.put(text, key, 1)
    with pytest.raises(BadInput, match="entry of a list"):
        json_edit.remove('{"l": [1, 2]}', "l.0")


def test_any_document_is_edited_as_its_content_would_be():
    chance = random.Random(7)

    def made(depth: int) -> object:
        kind = chance.randrange(6 if depth else 4)
        if kind < 4:
            return chance.choice([1, 2.5, "t,}]\"x", None, True, "é\n", [], {}])
        if kind == 4:
            return [made(depth - 1) for _ in range(chance.randrange(4))]
        return {name: made(depth - 1) for name in chance.sample("abcd", chance.randrange(5))}

    for _ in range(400):
        document = {name: made(3) for name in chance.sample("abcd", chance.randrange(1, 5))}
        text = json.dumps(document, indent=chance.choice([None, 2, "\t"]), ensure_ascii=chance.choice([True, False]))
        name = chance.choice("abcde")
        assert json.loads(json_edit.remove(text, name)) == {key: value for key, value in document.items() if key != name}
        assert json.loads(json_edit.put(text, name, {"n": [1]})) == document | {name: {"n": [1]}}
        if isinstance(inner := document.get("a"), dict):
            assert json.loads(json_edit.put(text, f"a.{name}", 1)) == document | {"a": inner | {name: 1}}
