from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ops.environments import model_folder
from ops.practice import model_folder as practice_model

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 5000000000\n"
TRUST = ["--max-model-len", "8", "--trust-remote-code"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return practice_model.write(tmp_path)


def with_code(model: Path, value: object = "modeling_x.XForCausalLM", file: str = "config.json") -> None:
    document = json.loads((model / file).read_text()) if (model / file).exists() else {}
    (model / file).write_text(json.dumps(document | {"auto_map": {"AutoModel": value}}))


def titles(found: list[dict], kind: str | None = None) -> list[str]:
    return [f"{finding['level']}: {finding['title']}" for finding in found if kind in (None, finding["kind"])]


def test_a_folder_of_weights_and_settings_has_nothing_to_tell(model: Path):
    assert model_folder.look(model, ["--max-model-len", "8"]) == []


def test_code_that_the_server_would_run_is_pointed_out(model: Path):
    with_code(model)
    (model / "modeling_x.py").write_text("raise SystemExit('imported')\n")
    first, second = model_folder.look(model, TRUST)
    assert first["level"] == "warning" and "`modeling_x.XForCausalLM`" in first["title"] and "config.json: auto_map.AutoModel" in first["why"]
    assert second["title"] == "The model folder holds 1 Python file: `modeling_x.py`"


def test_without_the_flag_it_is_a_note(model: Path):
    with_code(model)
    assert titles(model_folder.look(model)) == ["note: The model names code of its own (auto_map): `modeling_x.XForCausalLM`"]


def test_code_of_another_repository_is_told_apart(model: Path):
    with_code(model, "moonshot/other--modeling.X")
    assert "warning: auto_map names code of another repository: `moonshot/other`" in titles(model_folder.look(model, TRUST))


def test_a_tokenizers_list_and_a_nested_config_count_as_well(model: Path):
    with_code(model, ["tok.Slow", None], "tokenizer_config.json")
    config = json.loads((model / "config.json").read_text())
    config["text_config"]["auto_map"] = {"AutoConfig": "conf.C"}
    (model / "config.json").write_text(json.dumps(config))
    (finding,) = model_folder.look(model, TRUST)
    assert "`conf.C`, `tok.Slow`" in finding["title"] and "text_config.auto_map.AutoConfig" in finding["why"]


def test_a_flag_that_nothing_needs_is_pointed_out(model: Path):
    assert titles(model_folder.look(model, TRUST)) == ["note: --trust-remote-code is set, and nothing in the model folder asks for it"]


@pytest.mark.parametrize(("flags", "trusted"), [
    ([], False), (["--trust-remote-code"], True), (["--trust_remote_code"], True), (["--trust-remote-code=true"], True),
    (["--trust-remote-code=False"], False), (["--trust-remote-code", "--no-trust-remote-code"], False), (["--trust-remote-codes"], False)])
def test_every_spelling_of_the_flag(flags: list[str], trusted: bool):
    assert model_folder.trusts(flags) is trusted


def test_a_parser_that_lies_in_the_model_folder_is_pointed_out(model: Path):
    (model / "parser.py").write_text("")
    for flags in (["--reasoning-parser-plugin", str(model / "parser.py")], [f"--tool-parser-plugin={model}/parser.py"]):
        assert titles(model_folder.look(model, flags))[0].startswith("warning: The server runs `parser.py` of the model folder")
    assert len(model_folder.look(model, ["--reasoning-parser-plugin", "/opt/parser.py"])) == 1


def test_python_files_in_subfolders_are_found_without_an_auto_map(model: Path):
    (model / "code").mkdir()
    (model / "code" / "x.py").write_text("")
    assert "`code/x.py`" in model_folder.look(model)[0]["title"]


def test_pointers_and_shards_that_are_not_whole_are_stops(model: Path):
    (model / "model-00003-of-00064.safetensors").write_bytes(POINTER)
    (model / "model-00007-of-00064.safetensors").unlink()
    found = model_folder.look(model)
    assert titles(found) == ["stop: Only Git LFS pointers, not the files themselves: `model-00003-of-00064.safetensors`",
                             "stop: 1 of 64 weight files are not whole"]
    assert found[1]["why"] == "`model-00007-of-00064.safetensors` is missing"


def test_a_folder_that_was_cloned_without_lfs(model: Path):
    for path in model.glob("*.safetensors*"):
        path.write_bytes(POINTER)
    assert len(model_folder.look(model)) == 1


def test_a_model_without_an_index_is_held_against_its_headers(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(practice_model._shard("a")[:-1])
    assert titles(model_folder.look(tmp_path)) == ["stop: 1 of 1 weight files are not whole"]


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b"[1]"])
def test_settings_that_cannot_be_read_are_told(model: Path, content: bytes):
    (model / "config.json").write_bytes(content)
    found = model_folder.look(model)
    assert titles(found) == ([] if content == b"[1]" else ["warning: `config.json` is not JSON"])


def test_what_is_no_file_does_not_block(model: Path):
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    (model / "tokenizer_config.json").unlink()
    (model / "tokenizer_config.json").symlink_to("nowhere")
    assert len(titles(model_folder.look(model), "settings")) == 2


def test_a_folder_that_is_not_there(tmp_path: Path):
    assert titles(model_folder.look(tmp_path / "none")) == [f"stop: The model folder `{tmp_path / 'none'}` does not exist"]


def test_nothing_of_the_folder_is_imported(model: Path, monkeypatch: pytest.MonkeyPatch):
    with_code(model)
    (model / "modeling_x.py").write_text(f"open({str(model / 'victim')!r}, 'w').write('x')\n")
    monkeypatch.chdir(model)
    before = set(sys.modules)
    model_folder.look(model, TRUST)
    assert not (model / "victim").exists() and "modeling_x" not in set(sys.modules) - before
