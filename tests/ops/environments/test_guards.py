from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

import pytest

from ops.environments import guards, model_files, model_folder
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.practice import model_folder as practice_model
from ops.records import Guard, ServiceRecord


def service(model: Path, *given: dict, root: str = "/nowhere") -> ServiceRecord:
    return ServiceRecord(name="s", root=root, model_path=str(model), served_model_name="s", base_url="http://127.0.0.1:1", guards=list(given))


def check(model: Path, *given: dict) -> list[guards.GuardResult]:
    return guards.check(service(model, *given))


def absent(key: str, file: str = "config.json") -> dict:
    return {"kind": "key_absent", "file": file, "key": key}


def equals(key: str, value: object) -> dict:
    return {"kind": "key_equals", "file": "config.json", "key": key, "value": value}


def about(kind: str, file: str, value: object = None) -> dict:
    return {"kind": kind, "file": file, "value": value}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "quantization_config": {"kv_cache_scheme": {"num_bits": 8}, "quant_method": "modelopt", "format": None},
        "layers": [1, {"deep": True}], "count": 1, "flag": True}))
    return folder


@pytest.fixture
def weights(model: Path) -> Path:
    """Two whole shards with their index, as the practice model has them."""
    names = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    for tensor, file in names.items():
        (model / file).write_bytes(practice_model._shard(tensor))
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return model


SHARDS = about("shards_complete", "model.safetensors.index.json")
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 5000000000\n"


# ---- keys ----


def test_a_key_that_must_be_absent(model: Path):
    gone, there, null = check(model, absent("quantization_config.kv_cache_quant_algo"), absent("quantization_config.kv_cache_scheme"),
                              absent("quantization_config.format"))
    assert gone.holds and null.holds and not there.holds
    assert there.explains == "`quantization_config.kv_cache_scheme` is in `config.json`, but must not be"
    assert there.found == '{"num_bits": 8}' and "Remove `quantization_config.kv_cache_scheme`" in there.fix and there.can_apply


def test_a_key_that_must_have_a_value(model: Path):
    right, wrong, missing, deep = check(model, equals("quantization_config.quant_method", "modelopt"), equals("count", 2), equals("none", 1),
                                        equals("layers.1.deep", True))
    assert right.holds and deep.holds and not wrong.holds and not missing.holds
    assert wrong.explains == "`count` in `config.json` is 1, but must be 2"
    assert missing.explains == "`none` in `config.json` is not there, but must be 1"


def test_true_is_not_one_also_inside_of_a_list(model: Path):
    assert [result.holds for result in check(model, equals("flag", 1), equals("count", True), equals("layers", [True, {"deep": 1}]))] == [False] * 3
    assert check(model, equals("layers", [1.0, {"deep": True}]))[0].holds


def test_the_hash_tells_before_from_after(model: Path):
    (before,) = check(model, absent("x"))
    assert before.sha256 == hashlib.sha256((model / "config.json").read_bytes()).hexdigest()
    (model / "config.json").write_text("{}")
    assert check(model, absent("x"))[0].sha256 != before.sha256


def test_missing_files(model: Path):
    optional, required = check(model, absent("x", "hf_quant_config.json"), {"kind": "key_equals", "file": "other.json", "key": "x", "value": 1})
    assert optional.holds and not required.holds
    (model / "config.json").unlink()
    assert not check(model, absent("x"))[0].holds
    assert "does not exist" in check(model / "none", absent("x"))[0].explains


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xff", b"[" * 200_000])
def test_what_is_no_json_does_not_hold(model: Path, content: bytes):
    (model / "config.json").write_bytes(content)
    (result,) = check(model, absent("x"))
    assert not result.holds and "is not JSON" in result.explains and not result.can_apply


def test_a_huge_file_is_not_read(model: Path):
    with (model / "config.json").open("wb") as file:
        file.truncate(model_files.SIZE_LIMIT + 1)
    (result,) = check(model, absent("x"))
    assert not result.holds and "too large" in result.explains


def test_a_folder_in_the_place_of_a_file_is_told(model: Path):
    (model / "config.json").unlink()
    (model / "config.json").mkdir()
    assert "no regular file" in check(model, absent("x"))[0].explains and not check(model, about("not_lfs_pointer", "config.json"))[0].holds


def test_a_pipe_does_not_block(model: Path):
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    for result in check(model, absent("x"), about("file_hash", "config.json", "a" * 64), about("file_present", "config.json"),
                        about("not_lfs_pointer", "config.json")):
        assert not result.holds and "no regular file" in result.explains


def test_a_hub_cache_link_is_followed_and_a_broken_one_is_told(model: Path, tmp_path: Path):
    blob = tmp_path / "blob"
    (model / "config.json").rename(blob)
    (model / "config.json").symlink_to(blob)
    assert check(model, absent("x"))[0].holds
    blob.unlink()
    for result in check(model, absent("x"), about("file_present", "config.json"), about("not_lfs_pointer", "*.json")):
        assert not result.holds and "link to nothing" in result.explains


@pytest.mark.parametrize("guard", [{"kind": "run", "file": "config.json", "key": "x"}, absent("x", "../secret.json"), absent("x", "/etc/passwd"), {}])
def test_what_is_no_guard_is_refused(model: Path, guard: dict):
    with pytest.raises(BadInput):
        check(model, guard)


# ---- files ----


def test_a_file_with_a_hash(model: Path):
    digest = hashlib.sha256((model / "config.json").read_bytes()).hexdigest()
    right, wrong, none = check(model, about("file_hash", "config.json", digest), about("file_hash", "config.json", "0" * 64),
                               about("file_hash", "none.json", digest))
    assert right.holds and not wrong.holds and not none.holds
    assert digest in wrong.fix and not wrong.can_apply


def test_a_hash_is_remembered_until_the_file_changes(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_files, "RACY_NS", 0)
    root = tmp_path / "service"
    root.mkdir()
    record = service(weights, about("file_hash", "model-1.safetensors", "0" * 64), root=str(root))
    (first,) = guards.check(record)
    read: list[str] = []
    monkeypatch.setattr(hashlib, "file_digest", lambda *given: read.append("read") or pytest.fail("it was hashed again"))
    assert guards.check(record)[0].sha256 == first.sha256 and (root / "guard-cache.json").exists()
    monkeypatch.undo()
    with (weights / "model-1.safetensors").open("ab") as file:
        file.write(b"x")
    assert guards.check(record)[0].sha256 != first.sha256 and not read


def test_a_file_that_changed_just_now_is_not_remembered(model: Path, tmp_path: Path):
    record = service(model, about("file_hash", "config.json", "0" * 64), root=str(tmp_path))
    guards.check(record)
    assert not (tmp_path / "guard-cache.json").exists()


def test_the_stamp_changes_with_every_file_that_a_guard_looks_at(weights: Path):
    keys, wide = service(weights, absent("x")), service(weights, SHARDS)
    before = guards.stamp(keys), guards.stamp(wide)
    assert (guards.stamp(keys), guards.stamp(wide)) == before
    (weights / "model-2.safetensors").unlink()
    assert guards.stamp(keys) == before[0] and guards.stamp(wide) != before[1]
    (weights / "config.json").write_text("{}")
    assert guards.stamp(keys) != before[0]
    assert guards.stamp(service(weights / "none", absent("x"), SHARDS))


def test_a_torn_memory_is_no_obstacle(model: Path, tmp_path: Path):
    (tmp_path / "guard-cache.json").write_text("{")
    assert guards.check(service(model, about("file_present", "config.json"), root=str(tmp_path)))[0].holds


def test_whole_shards_hold(weights: Path):
    (result,) = check(weights, SHARDS)
    assert result.holds and result.explains.startswith("All 2 shards")


def damage(weights: Path, how: str) -> None:
    shard = weights / "model-2.safetensors"
    content = shard.read_bytes()
    match how:
        case "missing":
            shard.unlink()
        case "short":
            shard.write_bytes(content[:-1])
        case "longer":
            shard.write_bytes(content + b"x")
        case "pointer":
            shard.write_bytes(POINTER)
        case "empty":
            shard.write_bytes(b"")
        case "huge header":
            shard.write_bytes(struct.pack("<Q", 1 << 60) + content[8:])
        case "no header":
            shard.write_bytes(struct.pack("<Q", 4) + b"null" + bytes(8))
        case "deep header":
            shard.write_bytes(struct.pack("<Q", 100_000) + b"[" * 100_000)
        case "other tensors":
            shard.write_bytes(practice_model._shard("of another revision"))
        case "outside":
            (weights / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors", "b": "../../etc/passwd"}}')


@pytest.mark.parametrize(("how", "told"), [
    ("missing", "`model-2.safetensors` is missing"), ("short", "is cut off"), ("longer", "1 more than its header"), ("pointer", "Git LFS pointer"),
    ("empty", "it has 0 bytes"), ("huge header", "is cut off"), ("no header", "cannot be read"), ("deep header", "cannot be read"),
    ("other tensors", "lacks 1 of the 1 tensors"), ("outside", "no name of a file")])
def test_a_shard_that_is_not_whole_is_named(weights: Path, how: str, told: str):
    damage(weights, how)
    (result,) = check(weights, SHARDS)
    assert not result.holds and told in result.explains and "Download the model" in result.fix and not result.can_apply


def test_shards_are_read_once_and_looked_at_again_when_they_change(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_files, "RACY_NS", 0)
    record = service(weights, SHARDS, root=str(tmp_path))
    assert guards.check(record)[0].holds
    monkeypatch.setattr(model_files, "_content_problem", lambda *given: pytest.fail("a shard was read again"))
    assert guards.check(record)[0].holds
    monkeypatch.undo()
    damage(weights, "short")
    assert not guards.check(record)[0].holds


def test_an_index_that_is_none(weights: Path):
    for content in ("[]", "{", '{"weight_map": []}'):
        (weights / "model.safetensors.index.json").write_text(content)
        assert not check(weights, SHARDS)[0].holds
    (weights / "model.safetensors.index.json").unlink()
    assert "There is no" in check(weights, SHARDS)[0].explains


def test_a_model_of_one_file(model: Path):
    guard = about("shards_complete", "model.safetensors")
    assert not check(model, guard)[0].holds
    (model / "model.safetensors").write_bytes(practice_model._shard("a"))
    assert check(model, guard)[0].holds
    (model / "model.safetensors").write_bytes(practice_model._shard("a")[:-3])
    assert "is cut off" in check(model, guard)[0].explains


def test_pointers_are_found_by_name_and_by_pattern(weights: Path):
    every, one = about("not_lfs_pointer", "*.safetensors"), about("not_lfs_pointer", "model-1.safetensors")
    assert all(result.holds for result in check(weights, every, one))
    (weights / "model-2.safetensors").write_bytes(POINTER)
    many, single = check(weights, every, one)
    assert single.holds and not many.holds and "`model-2.safetensors`" in many.explains and "git lfs pull" in many.fix
    assert not check(weights, about("not_lfs_pointer", "*.gguf"))[0].holds


# ---- presets ----


def test_the_presets_are_guards_with_sources():
    found = {preset["name"]: preset for preset in guards.presets()}
    assert {"sm120", "complete"} == set(found)
    for preset in found.values():
        assert preset["title"] and preset["words"] and preset["sources"] and preset["guards"]


def places(name: str, model: Path) -> list[tuple[str, str]]:
    return [(guard.file, guard.key) for guard in guards.from_preset(name, model)]


def test_the_sm120_preset_knows_where_each_format_keeps_its_keys(model: Path):
    always = [("config.json", "quantization_config.kv_cache_scheme"), ("config.json", "quantization_config.kv_cache_quant_algo"),
              ("hf_quant_config.json", "quantization.kv_cache_quant_algo")]
    assert places("sm120", model) == always == places("sm120", model / "none")
    (model / "config.json").write_text(json.dumps({"text_config": {"quantization_config": {"kv_cache_scheme": None}}}))
    (model / "hf_quant_config.json").write_text(json.dumps({"producer": {}, "quantization": {"kv_cache_quant_algo": "FP8"}}))
    assert set(places("sm120", model)) - set(always) == {
        ("config.json", "text_config.quantization_config.kv_cache_scheme"), ("config.json", "text_config.quantization_config.kv_cache_quant_algo"),
        ("hf_quant_config.json", "quantization.kv_cache_scheme")}


def test_the_complete_preset_fits_the_model(weights: Path):
    found = guards.from_preset("complete", weights)
    assert [guard.file for guard in found if guard.kind == "shards_complete"] == ["model.safetensors.index.json"]
    assert all(result.holds for result in check(weights, *[guard.as_dict() for guard in found]))


def test_the_practice_model_holds_all_presets(tmp_path: Path):
    model = practice_model.write(tmp_path)
    chosen = [guard.as_dict() for name in ("sm120", "complete") for guard in guards.from_preset(name, model)]
    assert [result.explains for result in check(model, *chosen) if not result.holds] == []


def test_a_pattern_where_one_file_is_meant_does_not_hold(model: Path):
    assert "is a pattern" in check(model, absent("x", "*.json"))[0].explains


def test_an_unknown_preset_is_refused(model: Path):
    with pytest.raises(BadInput, match="no guard preset"):
        guards.from_preset("sm999", model)


# ---- apply ----

CONFIG = """\
{
    "architectures": ["X"],
    "quantization_config": {
        "kv_cache_scheme": {
            "num_bits": 8
        },
        "quant_method": "modelopt",
        "ratio": 1.50,
        "kv_cache_quant_algo": "FP8"
    },
    "rope": 1e-05
}
"""


def applied(record: ServiceRecord, wanted: list | None = None) -> list[dict]:
    done = guards.apply(record, wanted)
    assert all(result.holds for result in guards.check(record) if result.guard["kind"] in guards.APPLICABLE)
    return done


@pytest.fixture
def editable(model: Path, tmp_path: Path) -> ServiceRecord:
    (model / "config.json").write_text(CONFIG)
    return service(model, absent("quantization_config.kv_cache_scheme"), absent("quantization_config.kv_cache_quant_algo"),
                   root=str(tmp_path / "service"))


def test_apply_takes_out_the_keys_and_nothing_else(editable: ServiceRecord, model: Path):
    (told,) = applied(editable)
    assert (model / "config.json").read_text() == """\
{
    "architectures": ["X"],
    "quantization_config": {
        "quant_method": "modelopt",
        "ratio": 1.50
    },
    "rope": 1e-05
}
"""
    assert Path(told["backup"]).read_text() == CONFIG and told["file"] == "config.json"
    assert '-        "kv_cache_quant_algo": "FP8"' in told["diff"]
    assert [line for line in told["diff"].splitlines()[2:] if line.startswith("+")] == ['+        "ratio": 1.50']  # its comma went
    assert guards.apply(editable) == []


def test_the_backup_lies_in_the_services_own_folder_and_is_private(editable: ServiceRecord):
    (told,) = applied(editable)
    backup = Path(told["backup"])
    assert backup.is_relative_to(editable.folder / "guard-backups") and backup.stat().st_mode & 0o777 == 0o600
    manifest = json.loads((backup.parents[1] / "manifest.json").read_text())
    assert manifest["files"][0]["sha256_before"] == hashlib.sha256(CONFIG.encode()).hexdigest()


def test_apply_keeps_the_mode_and_leaves_no_other_file(editable: ServiceRecord, model: Path):
    (model / "config.json").chmod(0o640)
    applied(editable)
    assert (model / "config.json").stat().st_mode & 0o777 == 0o640 and [path.name for path in model.iterdir()] == ["config.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_apply_keeps_the_owner(editable: ServiceRecord, model: Path):
    os.chown(model / "config.json", 12345, 23456)
    applied(editable)
    found = (model / "config.json").stat()
    assert (found.st_uid, found.st_gid) == (12345, 23456)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_a_file_that_could_not_keep_its_owner_is_left_alone(editable: ServiceRecord, model: Path, monkeypatch: pytest.MonkeyPatch):
    os.chown(model / "config.json", 12345, 23456)

    def refuse(*given: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(OpsError, match="cannot be changed") as caught:
        guards.apply(editable)
    assert "belongs to another user (uid 12345" in caught.value.why and (model / "config.json").read_text() == CONFIG
    assert [path.name for path in model.iterdir()] == ["config.json"] and not list((editable.folder / "guard-backups").iterdir())


def test_a_link_of_a_hub_cache_becomes_a_file_and_the_shared_blob_stays(editable: ServiceRecord, model: Path, tmp_path: Path):
    repository = tmp_path / "hub" / "models--org--name"
    snapshot, blob = repository / "snapshots" / "0123abc", repository / "blobs" / "abc"
    blob.parent.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (model / "config.json").rename(blob)
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    editable.model_path = str(snapshot)
    applied(editable)
    assert blob.read_text() == CONFIG and not (snapshot / "config.json").is_symlink()
    assert "kv_cache" not in (snapshot / "config.json").read_text()


@pytest.mark.parametrize("folder", ["elsewhere", "model-2", "snapshots/other", "blobs"])
def test_a_link_to_somebody_elses_file_is_neither_shown_nor_taken(editable: ServiceRecord, model: Path, tmp_path: Path, folder: str):
    secret = tmp_path / folder / "settings.json"
    secret.parent.mkdir(parents=True)
    secret.write_text(CONFIG.replace("1e-05", '"canary-of-a-secret"'))
    (model / "config.json").unlink()
    (model / "config.json").symlink_to(secret)
    with pytest.raises(Refused, match="outside of the model folder") as caught:
        guards.apply(editable)
    assert "canary" not in str(caught.value) and (model / "config.json").is_symlink() and not (editable.folder / "guard-backups").exists()


def write_index(model: Path, names: dict) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "", "a\0b", "a\ud800b", "x" * 5_000_000])
def test_a_shard_with_a_name_that_is_none_is_told_in_short(model: Path, name: str):
    write_index(model, {"a": name})
    (result,) = check(model, SHARDS)
    assert not result.holds and "is no name of a file in the folder" in result.explains and len(result.explains) < 400
    json.dumps([result.as_dict(), *model_folder.look(model)], ensure_ascii=False).encode()


@pytest.mark.parametrize("header", ['{"a": {"data_offsets": [0, 1e999]}}', '{"a": {"data_offsets": [0, NaN]}}', "[" * 100_000, '{"a": [1]}', "1",
                                    '{"\\ud800": 1}'])
def test_a_header_of_a_shard_that_nobody_would_write_is_told(model: Path, header: str):
    write_index(model, {"a\ud800": "m.safetensors"})
    (model / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    (result,) = check(model, SHARDS)
    assert not result.holds and "cannot be read" in result.explains
    json.dumps([result.as_dict(), *model_folder.look(model)], ensure_ascii=False).encode()


def test_names_and_values_that_are_no_text_can_be_told(model: Path):
    (model / "config.json").write_text('{"a": "\\ud800", "auto_map": {"x\\ud800": "evil\\ud800.X"}}')
    for name in (b"\xff.safetensors", b"\xff.py"):
        (Path(os.fsdecode(os.fsencode(model) + b"/" + name))).write_bytes(b"")
    results = check(model, absent("a"), equals("a", 1), about("not_lfs_pointer", "*.safetensors"))
    told = [*(result.as_dict() for result in results), *model_folder.look(model, ["--trust-remote-code"])]
    json.dumps(told, ensure_ascii=False).encode()


def test_a_hard_link_elsewhere_is_not_edited(editable: ServiceRecord, model: Path, tmp_path: Path):
    os.link(model / "config.json", tmp_path / "other.json")
    applied(editable)
    assert (tmp_path / "other.json").read_text() == CONFIG


def test_a_file_that_a_folder_link_leads_out_to_is_refused(model: Path, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "config.json").write_text('{"x": 1}')
    (model / "sub").symlink_to(tmp_path / "elsewhere")
    record = service(model, absent("x", "sub/config.json"), root=str(tmp_path / "service"))
    with pytest.raises(Refused, match="outside of the model folder"):
        guards.apply(record)
    assert (tmp_path / "elsewhere" / "config.json").read_text() == '{"x": 1}'


def test_a_value_is_set_where_it_is_wrong_and_added_where_it_is_missing(model: Path, tmp_path: Path):
    (model / "config.json").write_text(CONFIG)
    record = service(model, equals("rope", 2), equals("quantization_config.kv.dtype", "auto"), equals("list", [1]), root=str(tmp_path / "service"))
    applied(record)
    assert (model / "config.json").read_text() == CONFIG.replace("1e-05", '2,\n    "list": [\n        1\n    ]').replace(
        '"FP8"\n', '"FP8",\n        "kv": {\n            "dtype": "auto"\n        }\n')


def test_several_files_are_edited_together(editable: ServiceRecord, model: Path):
    (model / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}')
    editable.guards.append(absent("quantization.kv_cache_quant_algo", "hf_quant_config.json"))
    assert [told["file"] for told in applied(editable)] == ["config.json", "hf_quant_config.json"]
    assert (model / "hf_quant_config.json").read_text() == '{"quantization": {"quant_algo": "NVFP4"}}'


@pytest.mark.parametrize("linked", [False, True])
def test_if_one_file_cannot_be_written_no_file_is_changed(editable: ServiceRecord, model: Path, tmp_path: Path, linked: bool,
                                                          monkeypatch: pytest.MonkeyPatch):
    other = '{"x": 1}'
    (model / "z.json").write_text(other)
    editable.guards.append(absent("x", "z.json"))
    if linked:
        (model / "blob").mkdir()
        (model / "config.json").rename(model / "blob" / "abc")
        (model / "config.json").symlink_to("blob/abc")
    real = guards._Edit.write

    def write(edit: guards._Edit, content: bytes) -> None:
        if edit.file == "z.json":
            raise OSError(28, "No space left on device")
        real(edit, content)

    monkeypatch.setattr(guards._Edit, "write", write)
    with pytest.raises(OpsError, match="cannot be changed") as caught:
        guards.apply(editable)
    assert "No space left" in caught.value.why
    assert (model / "config.json").read_text() == CONFIG and (model / "config.json").is_symlink() == linked
    assert (model / "z.json").read_text() == other


def test_nothing_is_edited_before_the_backup_is_safe(editable: ServiceRecord, model: Path):
    editable.folder.write_text("a file is in the way")
    with pytest.raises(OpsError, match="cannot be saved beforehand"):
        guards.apply(editable)
    assert (model / "config.json").read_text() == CONFIG


def test_a_file_that_somebody_else_changes_meanwhile_is_left_alone(editable: ServiceRecord, model: Path, monkeypatch: pytest.MonkeyPatch):
    real = guards._back_up

    def slow(*given):  # type: ignore[no-untyped-def]
        (model / "config.json").write_text(CONFIG + "\n\n")
        return real(*given)

    monkeypatch.setattr(guards, "_back_up", slow)
    with pytest.raises(OpsError, match="cannot be changed"):
        guards.apply(editable)
    assert (model / "config.json").read_text() == CONFIG + "\n\n"


def test_what_an_edit_cannot_mend_says_what_does(weights: Path, tmp_path: Path):
    damage(weights, "pointer")
    record = service(weights, SHARDS, about("not_lfs_pointer", "*.safetensors"), root=str(tmp_path / "service"))
    assert guards.apply(record) == []
    with pytest.raises(BadInput, match="No edit makes this guard hold") as caught:
        guards.apply(record, [SHARDS])
    assert "Download the model" in caught.value.hint


def test_only_guards_of_the_service_are_applied(editable: ServiceRecord, model: Path):
    with pytest.raises(BadInput, match="no guard of service"):
        guards.apply(editable, [absent("architectures")])
    one = Guard.from_dict(editable.guards[1])
    guards.apply(editable, [one])
    assert [result.holds for result in guards.check(editable)] == [False, True]


@pytest.mark.parametrize("content", ["{", "[1]", '{"quantization_config": 1}'])
def test_files_that_cannot_be_edited_are_left_as_they_are(model: Path, tmp_path: Path, content: str):
    (model / "config.json").write_text(content)
    record = service(model, equals("quantization_config.x", 1), root=str(tmp_path / "service"))
    with pytest.raises(OpsError):
        guards.apply(record, record.guards)
    assert (model / "config.json").read_text() == content


def test_what_a_killed_edit_left_goes_with_the_next_one(editable: ServiceRecord, model: Path):
    half = model / f".config.json.roundhouse-{os.getpid()}"  # a pid that came again is no obstacle either
    others = [model / ".config.json.roundhouse-mine", model / ".other.json.roundhouse-7"]
    backup = editable.folder / "guard-backups" / ".20260101-000000-7"
    backup.mkdir(parents=True)
    for path in (half, *others, backup / "file"):
        path.write_text("half")
    assert guards.apply(editable)
    assert not half.exists() and not backup.exists() and all(path.exists() for path in others)
    assert all(result.holds for result in guards.check(editable))
