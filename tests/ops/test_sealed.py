"""Values that only one node can read."""

from __future__ import annotations

import base64
import stat
import threading
from pathlib import Path

import pytest
from nacl.public import PublicKey, SealedBox

from ops import sealed
from ops.agent.config import NodePaths
from ops.jobs.errors import BadInput, OpsError


@pytest.fixture
def node(tmp_path: Path) -> NodePaths:
    return NodePaths(tmp_path / "node").make()


def made(paths: NodePaths, value: str, *, service: str = "svc", name: str = "HF_TOKEN") -> str:
    return sealed.seal(sealed.public_key(paths), value, service=service, name=name)


def opened(paths: NodePaths, text: str, *, service: str = "svc", name: str = "HF_TOKEN") -> str:
    return sealed.unseal(paths, text, service=service, name=name)


@pytest.mark.parametrize("value", ["", "hf_abc", "ö€🚂" * 50, "two\nlines\ttab \\ 'quotes' \"", "x" * sealed.VALUE_BYTES, " blanks at its ends "])
def test_a_value_comes_back_as_it_was_sealed(node: NodePaths, value: str) -> None:
    assert opened(node, made(node, value)) == value


def test_what_is_sealed_shows_neither_the_value_nor_its_length(node: NodePaths) -> None:
    texts = [made(node, value) for value in ("", "a", "a" * 30, "a" * 64)]
    assert len({len(text) for text in texts}) == 1
    assert made(node, "same") != made(node, "same")
    assert b"secret-value" not in base64.b64decode(made(node, "secret-value"))


def test_the_key_is_made_once_for_the_owner_alone_also_by_many_at_once(node: NodePaths) -> None:
    keys: list[str] = []
    threads = [threading.Thread(target=lambda: keys.append(sealed.public_key(node))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(keys)) == 1 and len(keys) == 8
    assert stat.S_IMODE(sealed.key_path(node).stat().st_mode) == 0o600
    assert [entry.name for entry in node.root.iterdir() if "settings" in entry.name] == ["settings.key"]


def test_another_node_and_a_changed_text_cannot_open_it_and_the_error_repeats_nothing(node: NodePaths, tmp_path: Path) -> None:
    other = NodePaths(tmp_path / "other").make()
    text = made(node, "hf_verysecretvalue")
    changed = base64.b64encode(base64.b64decode(text)[:-1] + b"\0").decode()
    for paths, given in ((other, text), (node, changed), (node, "no base64!"), (node, ""), (node, "A" * 200_000)):
        with pytest.raises(OpsError) as caught:
            opened(paths, given)
        assert caught.value.kind == "sealed"
        assert "verysecret" not in str(caught.value) and (not given or given[:40] not in str(caught.value))


@pytest.mark.parametrize(("service", "name"), [
    ("svc", "CUDA_HOME"), ("other", "HF_TOKEN"), ("svc", "HF_TOKE"), ("svc", "HF_TOKEN2"), ("sv", "cHF_TOKEN")])
def test_what_was_sealed_for_another_variable_or_service_is_refused(node: NodePaths, service: str, name: str) -> None:
    with pytest.raises(OpsError, match=f"not for the variable `{name}` of service `{service}`") as caught:
        opened(node, made(node, "hf_verysecretvalue"), service=service, name=name)
    assert caught.value.kind == "sealed" and "verysecret" not in str(caught.value) and "type the value again" in caught.value.hint


def test_what_was_sealed_without_a_name_is_refused(node: NodePaths) -> None:
    """By an earlier version, or by hand."""
    bare = SealedBox(PublicKey(base64.b64decode(sealed.public_key(node)))).encrypt(b"value" + b"\0" * 59)
    with pytest.raises(OpsError, match="not for the variable"):
        opened(node, base64.b64encode(bare).decode())


@pytest.mark.parametrize("value", ["nul\0", "\ud800", "x" * (sealed.VALUE_BYTES + 1)])
def test_what_no_variable_can_hold_is_not_sealed(node: NodePaths, value: str) -> None:
    with pytest.raises(BadInput):
        made(node, value)


@pytest.mark.parametrize("key", ["", "AAAA", "not base64", base64.b64encode(b"x" * 33).decode()])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    with pytest.raises(BadInput, match="key for settings"):
        sealed.seal(key, "value", service="svc", name="A")


def test_a_broken_key_file_is_told_with_what_to_do_and_not_replaced(node: NodePaths) -> None:
    sealed.public_key(node)
    sealed.key_path(node).write_text("garbage\n")
    with pytest.raises(OpsError, match="is no key"):
        sealed.public_key(node)
    assert sealed.key_path(node).read_text() == "garbage\n"
