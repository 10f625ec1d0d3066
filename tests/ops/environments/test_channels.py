from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodeConfig
from ops.environments import channels, uv
from ops.jobs.errors import BadInput, Refused
from ops.records import Channel

HOSTILE = ["-x", "--index-url=http://127.0.0.1/x", "a\nb", "a\0b", "a;b", "$(id)", "../up", "a @ file:///tmp/x",
           "x" * 1_000_000, "a b", "\u202eevil", "a\tb"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def index_channel(**fields: Any) -> Channel:
    return Channel(**{"name": "c", "kind": "index", "index_url": "public", **fields})


def node(**fields: Any) -> NodeConfig:
    return NodeConfig(name="n", **fields)


# Presets


def test_every_preset_describes_its_fields():
    told = channels.presets()
    assert [preset["name"] for preset in told] == ["stable", "nightly", "commit", "wheelhouse", "recipe", "index"]
    for preset in told:
        assert preset["title"] and preset["words"].endswith(".")
        for field in preset["fields"]:
            assert field["title"] and field["kind"] in {"text", "path", "address", "lines", "choice", "switch", "json"}
            assert field["kind"] != "choice" or field["default"] in field["choices"]


def test_stable_is_the_serving_stack_with_the_hash_of_every_file():
    made = channels.make("stable", name="stable")
    assert (made.kind, made.index_url, made.preset, made.prerelease) == ("index", "public", "stable", False)
    assert "vllm==0.25.1" in made.requirements
    limits = {limit.name: limit for limit in channels.constraints(made)}
    assert limits["vllm"].version == "0.25.1" and all(limit.hashes for limit in limits.values())
    assert len(limits) > 150
    assert Channel.from_dict(json.loads(json.dumps(made.as_dict()))) == made


def test_nightly_asks_vllms_index_first_and_lets_the_rest_fall_through():
    made = channels.make("nightly", name="nightly", variant="cu129")
    assert made.extra_index_urls == ["https://wheels.vllm.ai/nightly/cu129"] and made.index_url == "public"
    assert (made.index_strategy, made.variant, made.prerelease) == ("unsafe-first-match", "cu129", True)
    assert channels.make("nightly", name="nightly").extra_index_urls == ["https://wheels.vllm.ai/nightly"]
    assert uv.source(made) == ["--index", "https://wheels.vllm.ai/nightly/cu129", "--index-strategy", "unsafe-first-match"]


def test_a_commit_has_an_index_of_its_own():
    made = channels.make("commit", name="one", commit=COMMIT, variant="cu130")
    assert made.extra_index_urls == [f"https://wheels.vllm.ai/{COMMIT}/cu130"] and made.commit == COMMIT


def test_flashinfers_own_index_is_asked_where_an_admin_wants_it():
    without, with_it = channels.make("nightly", name="n", variant="cu129"), channels.make("nightly", name="n", variant="cu129", flashinfer=True)
    assert with_it.extra_index_urls[1:] == ["https://flashinfer.ai/whl/cu129/", "https://flashinfer.ai/whl/"]
    assert channels.flashinfer_index(with_it) and not channels.flashinfer_index(without)
    assert channels.make("stable", name="s", flashinfer=True).extra_index_urls == ["https://flashinfer.ai/whl/"]
    assert channels.flashinfer_index(channels.make("index", name="o", extra_index_urls=["https://flashinfer.ai/whl"]))


def test_a_wheelhouse_takes_no_network(tmp_path: Path):
    made = channels.make("wheelhouse", name="house", wheelhouse=str(tmp_path), practice=True)
    assert uv.source(made) == ["--offline", "--no-index", "--find-links", str(tmp_path)]
    assert made.practice
    stable = channels.make("stable", name="s", wheelhouse=str(tmp_path))
    assert stable.kind == "wheelhouse" and stable.constraints and not stable.index_url
    for field, value in (("flashinfer", True), ("torch_backend", "cu129"), ("exclude_newer", "2026-01-01")):
        with pytest.raises(BadInput, match="without any network") as caught:
            channels.make("stable", name="s", wheelhouse=str(tmp_path), **{field: value})
        assert caught.value.facts["field"] == field


def test_what_a_channel_leaves_out_is_a_name_that_it_does_not_install():
    made = channels.make("wheelhouse", name="cpu", wheelhouse="/srv/wheels", without="Torch_Vision\ntorchaudio")
    assert made.without == ["torch-vision", "torchaudio"] and channels.source(made)["without"] == made.without
    assert "without" not in channels.source(index_channel())
    for text in ("torchvision>=1", "torch[cuda]", "a b", "--requirement", "x @ https://b/"):
        with pytest.raises(BadInput):
            channels.check(index_channel(without=[text]))
    with pytest.raises(BadInput, match="installs `vllm`, and leaves it out"):
        channels.check(index_channel(without=["VLLM"]))


def test_arguments_reach_uv_in_their_own_form():
    made = channels.make("index", name="o", torch_backend="cu129", exclude_newer="2026-11-01T12:00:00Z")
    assert uv.source(made)[-4:] == ["--exclude-newer", "2026-11-01T12:00:00Z", "--torch-backend", "cu129"]


@pytest.mark.parametrize("name, value", [
    ("torch-backend", "cu129"), ("torch-backend", "auto"), ("torch-backend", "rocm6.4"), ("torch-backend", "rocm6.2.4"),
    ("exclude-newer", "2026-11-01"), ("exclude-newer", "2026-11-01T00:00:00+02:00")])
def test_good_argument_values(name: str, value: str):
    assert channels.argument(name, value) == value


@pytest.mark.parametrize("name, value", [
    ("torch-backend", ""), ("torch-backend", "cu"), ("torch-backend", "cu\u0661\u0662\u0669"), ("torch-backend", "--x"),
    ("exclude-newer", "30 days"), ("exclude-newer", "2026-13-01"), ("exclude-newer", "2026-11-01T25:00:00Z"), ("exclude-newer", "P30D"),
    ("link-mode", "hardlink"), ("config-file", "/etc/x"), ("index", "https://example.org"),
    *(("torch-backend", text) for text in HOSTILE), *(("exclude-newer", text) for text in HOSTILE),
    *((text, "cu129") for text in HOSTILE)])
def test_arguments_are_a_closed_set(name: str, value: str):
    with pytest.raises(BadInput):
        channels.argument(name, value)


# Every field, with what should never reach a command line


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("field", ["index_url", "extra_index_urls", "index_strategy", "wheelhouse", "requirements", "constraints", "variant",
                                   "commit", "arguments", "argument", "name", "kind"])
def test_no_field_of_a_channel_takes_what_is_none(field: str, text: str, tmp_path: Path):
    value: Any = [text] if field in ("extra_index_urls", "requirements", "constraints") else {"torch-backend": text} if field == "arguments" else \
        {text: "cu129"} if field == "argument" else text
    fields = {"arguments" if field == "argument" else field: value}
    if field == "wheelhouse":
        fields |= {"kind": "wheelhouse", "index_url": ""}
    if field == "commit":
        fields |= {"preset": "commit"}
    with pytest.raises(BadInput) as caught:
        uv.source(index_channel(**fields))
    assert len(str(caught.value)) < 2000 and caught.value.what.isprintable()


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("preset", ["stable", "nightly", "commit", "wheelhouse", "index"])
def test_no_field_of_the_form_takes_what_is_none(preset: str, text: str, tmp_path: Path):
    form = next(one for one in channels.presets() if one["name"] == preset)
    good: dict[str, Any] = {"commit": COMMIT} if preset == "commit" else {"wheelhouse": str(tmp_path)} if preset == "wheelhouse" else {}
    for field in form["fields"]:
        with pytest.raises(BadInput) as caught:
            channels.make(preset, name="c", **{**good, field["name"]: [text] if field["kind"] == "lines" else text})
        assert caught.value.facts["field"] == field["name"], field["name"]


@pytest.mark.parametrize("value", [7, None, ["x"], {"a": 1}, True, 1.5])
def test_a_value_of_another_form_is_refused_or_left_out(value: Any):
    for field in ("index_url", "torch_backend", "variant"):
        if value is None:
            assert channels.make("index", name="c", **{field: value}).index_url == "public"
        else:
            with pytest.raises(BadInput):
                channels.make("index", name="c", **{field: value})


def test_unknown_presets_and_fields_are_refused():
    with pytest.raises(BadInput, match="no channel preset"):
        channels.make("beta", name="c")
    with pytest.raises(BadInput, match="no field `wheelhouse`"):
        channels.make("nightly", name="c", wheelhouse="/srv")
    with pytest.raises(BadInput, match="is missing"):
        channels.make("commit", name="c")


@pytest.mark.parametrize("address", [
    "https://user:pw@example.org/simple", "https://example.org/../up", "https://example.org/%2e%2e/up",
    "https://example.org/a?b=c", "https://example.org/#x", "file:///tmp", "https://example.org:99999/",
    "https://exa mple.org", "//example.org", "https://[::1", "https://e.org/\\..\\x", "https://b\u00fccher.example"])
def test_an_address_is_plain_and_goes_nowhere_else(address: str):
    with pytest.raises(BadInput):
        channels.index_url(address)


@pytest.mark.parametrize("address", ["https://wheels.vllm.ai/nightly/cu129", "http://127.0.0.1:8080/simple", "http://[::1]:8080/simple/", "https://e.org"])
def test_good_addresses(address: str):
    assert channels.index_url(address) == address


@pytest.mark.parametrize("line", ["torch", "torch>=2", "torch==2.*", "torch==2.10.0,<3", "torch[x]==2.0", "torch==2.0 --hash=md5:abc",
                                  "torch==2.0 --hash=sha256:12", "torch==2.0 --index-url=x", "-r other.txt", "torch @ file:///x"])
def test_a_constraint_is_one_version(line: str):
    with pytest.raises(BadInput):
        channels.constraint(line)


def test_a_channel_says_one_thing():
    for wrong in (index_channel(wheelhouse="/srv/w"), Channel(name="c", kind="wheelhouse", wheelhouse="/srv/w", index_url="public"),
                  index_channel(extra_index_urls=["public"]), index_channel(constraints=["torch==1", "Torch==2"]),
                  index_channel(extra_index_urls=["https://e.org"] * 21), index_channel(index_url=""), index_channel(preset="commit")):
        with pytest.raises(BadInput):
            channels.check(wrong)


# What the node allows


def test_the_public_index_is_allowed_by_its_word_only():
    channels.allowed(index_channel(), node(index_urls=["public"]))
    for urls in ([], ["https://"], ["https://example.org/"], ["pytorch"]):
        with pytest.raises(Refused, match="does not allow the index `public`"):
            channels.allowed(index_channel(), node(index_urls=urls))


def test_an_entry_that_ends_with_a_slash_allows_all_below_it():
    config = node(index_urls=["public", "https://wheels.vllm.ai/"])
    channels.allowed(channels.make("nightly", name="n", variant="cu129"), config)
    channels.allowed(channels.make("commit", name="n", commit=COMMIT), config)
    with pytest.raises(Refused):
        channels.allowed(channels.make("nightly", name="n", flashinfer=True), config)


@pytest.mark.parametrize("address", ["https://wheels.vllm.ai.evil.example/x", "http://wheels.vllm.ai/x", "https://wheels.vllm.ai:8443/x",
                                     "https://wheels.vllm.ai/a/%2E%2e/b", "https://evil.example/https://wheels.vllm.ai/"])
def test_nothing_else_comes_through_such_an_entry(address: str):
    with pytest.raises(Refused):
        channels.allowed(index_channel(extra_index_urls=[address]), node(index_urls=["public", "https://wheels.vllm.ai/"]))


def test_an_entry_without_a_slash_is_one_address():
    config = node(index_urls=["public", "https://wheels.vllm.ai/nightly"])
    channels.allowed(index_channel(extra_index_urls=["https://WHEELS.vllm.ai/nightly/"]), config)
    with pytest.raises(Refused):
        channels.allowed(index_channel(extra_index_urls=["https://wheels.vllm.ai/nightly/cu129"]), config)


def test_a_torch_backend_brings_indexes_that_the_node_must_allow():
    made = channels.make("index", name="o", torch_backend="cu129")
    with pytest.raises(Refused, match="pytorch"):
        channels.allowed(made, node(index_urls=["public"]))
    channels.allowed(made, node(index_urls=["public", "pytorch"]))


def test_a_wheelhouse_lies_where_the_node_allows_it(tmp_path: Path):
    (tmp_path / "in").mkdir()
    made = channels.make("wheelhouse", name="w", wheelhouse=str(tmp_path / "in"))
    channels.allowed(made, node(wheelhouse_roots=[str(tmp_path)]))
    with pytest.raises(Refused):
        channels.allowed(made, node(wheelhouse_roots=[str(tmp_path / "other")]))
    (tmp_path / "link").symlink_to("/usr")
    with pytest.raises(Refused):
        channels.allowed(dataclasses.replace(made, wheelhouse=str(tmp_path / "link" / "lib")), node(wheelhouse_roots=[str(tmp_path)]))


# One word on the command line


def test_a_channel_from_one_word(tmp_path: Path):
    assert channels.parse("stable").preset == "stable"
    assert channels.parse("nightly") == channels.make("nightly", name="nightly")
    assert channels.parse("nightly:cu130") == channels.make("nightly", name="nightly", variant="cu130")
    assert channels.parse(f"commit:{COMMIT}:cu129").extra_index_urls == [f"https://wheels.vllm.ai/{COMMIT}/cu129"]
    assert channels.parse(f"wheelhouse:{tmp_path}").wheelhouse == str(tmp_path)
    assert not channels.parse(f"wheelhouse:{tmp_path}").practice
    assert channels.parse(f"wheelhouse:{tmp_path}", config=node(practice=True, wheelhouse_roots=[str(tmp_path)])).practice
    file = tmp_path / "channel.json"
    file.write_text(json.dumps(index_channel(requirements=["vllm", "lmcache"]).as_dict()))
    assert channels.parse(str(file)).requirements == ["vllm", "lmcache"]


def test_one_word_is_held_against_the_node(tmp_path: Path):
    with pytest.raises(Refused):
        channels.parse("nightly", config=node(index_urls=["public"]))
    with pytest.raises(Refused):
        channels.parse(f"wheelhouse:{tmp_path}", config=node())


@pytest.mark.parametrize("spec", ["", "beta", "stable:x", "nightly:", "nightly:cu12/../x", "commit:abc", "commit:", "wheelhouse:relative",
                                  "wheelhouse:", "recipe:/no/such/file.json", "/no/such/channel.json", "/", *HOSTILE])
def test_words_that_are_no_channel(spec: str):
    if spec == "nightly:":
        assert channels.parse(spec).variant == ""
        return
    with pytest.raises(BadInput) as caught:
        channels.parse(spec)
    assert caught.value.what.isprintable()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"name": "c"}', b'{"name": "c", "kind": "index", "index_url": "-x"}',
                                     b"[" * 100_000])
def test_files_that_are_no_channel(tmp_path: Path, content: bytes):
    (tmp_path / "c.json").write_bytes(content)
    with pytest.raises(BadInput):
        channels.parse(str(tmp_path / "c.json"))
