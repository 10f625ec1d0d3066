from __future__ import annotations

from dashboard import sse


def test_an_event_has_its_number_name_and_data() -> None:
    assert sse.event("job", b'{"a":1}', id=7) == b'id: 7\nevent: job\ndata: {"a":1}\n\n'


def test_an_object_is_encoded() -> None:
    assert sse.event("jobs", {"running": 2}) == b'event: jobs\ndata: {"running":2}\n\n'


def test_line_ends_in_data_cannot_forge_an_event() -> None:
    forged = sse.event("job", "x\nevent: bye\r\n\r\nid: 9\rdata: y")
    lines = forged.decode().rstrip("\n").split("\n")
    assert lines[0] == "event: job" and all(line.startswith("data: ") for line in lines[1:])
