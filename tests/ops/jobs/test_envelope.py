from __future__ import annotations

import json
import time
from typing import Any

import pytest

from ops.agent.config import NodeConfig
from ops.jobs.envelope import MAX_BYTES, Envelope, check_job_id, verify
from ops.jobs.errors import Refused

NOW = 1_800_000_000.0
CONFIG = NodeConfig(name="n1", service_roots=["/srv"], model_roots=["/models"], wheelhouse_roots=["/wheels"], artifact_roots=["/tmp/vllm"],
                    units=["vllm.service"])
SERVICE = {"name": "a", "root": "/srv/a", "model_path": "/models/m", "served_model_name": "m", "base_url": "http://127.0.0.1:8000"}


def raw(**changes: Any) -> dict[str, Any]:
    made = Envelope.make(type="redeploy", node="n1", service=SERVICE, locks=["service:a"], fence={"service:a": 3}, now=NOW, by="eva").as_dict()
    return {**made, **changes}


def refused(given: Any) -> str:
    with pytest.raises(Refused) as caught:
        Envelope.from_dict(given)
    return caught.value.what


def test_an_envelope_survives_its_way_as_json() -> None:
    envelope = Envelope.from_dict(raw())
    assert Envelope.from_json(envelope.to_json()) == envelope


def test_an_unknown_field_is_refused() -> None:
    assert "`queue`" in refused(raw(queue="x"))


@pytest.mark.parametrize("name", sorted(raw()))
def test_a_missing_field_is_refused(name: str) -> None:
    given = raw()
    del given[name]
    assert f"`{name}`" in refused(given)


@pytest.mark.parametrize(("name", "value"), [
    ("job", "../../etc"), ("job", 7), ("job", "F4DB51E2-0000-4000-8000-000000000000"), ("job", "f4db51e2-0000-1000-8000-000000000000"),
    ("node", ""), ("node", "n1\n"), ("type", "Redeploy"), ("type", "a;b"), ("params", []), ("locks", ["service:b", "service:a"]),
    ("locks", ["service:a", "service:a"]), ("locks", ["service:../x"]), ("locks", [["service:a"]]), ("fence", {"service:b": 3}),
    ("fence", {"service:a": 0}), ("fence", {"service:a": True}), ("fence", {"service:a": "3"}), ("iat", "now"), ("iat", True), ("exp", NOW - 1),
    ("service", {"name": "a"}), ("service", {**SERVICE, "root": "relative"}), ("snapshot", None), ("sig", None), ("iat", float("nan")),
])
def test_a_value_that_cannot_be_right_is_refused(name: str, value: Any) -> None:
    refused(raw(**{name: value}))


def test_an_envelope_that_is_no_object_is_refused() -> None:
    assert "list" in refused([])


def test_a_too_large_envelope_is_refused() -> None:
    assert "too large" in refused(raw(params={"x": "a" * MAX_BYTES}))


def test_nesting_without_end_is_refused() -> None:
    text = json.dumps(raw()).replace('"params": {}', '"params": {"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(Refused):
        Envelope.from_json(text)


def checked(given: dict[str, Any], *, now: float = NOW + 1, config: NodeConfig = CONFIG, **more: Any) -> None:
    verify(Envelope.from_dict(given), config, now=now, types={"redeploy", "artifact-scan"}, **more)


def refusal(given: dict[str, Any], **more: Any) -> str:
    with pytest.raises(Refused) as caught:
        checked(given, **more)
    return caught.value.kind


def test_a_right_envelope_is_taken() -> None:
    checked(raw())


def test_another_nodes_envelope_is_refused() -> None:
    assert refusal(raw(node="n2")) == "another_node"


def test_an_unknown_type_is_refused() -> None:
    assert refusal(raw(type="format-disk")) == "refused"


def test_age_is_told_by_the_given_clock_alone() -> None:
    given = raw()
    assert refusal(given, now=given["exp"]) == "expired"
    assert abs(time.time() - NOW) > 0  # the node's own clock plays no part


def test_a_signature_without_a_key_to_check_it_is_refused() -> None:
    assert refusal(raw(sig="abc")) == "bad_signature"


def test_a_verifier_sees_everything_but_the_signature() -> None:
    seen = []

    def right(data: bytes, sig: str) -> bool:
        seen.append((json.loads(data), sig))
        return sig == "good"

    given = raw(sig="good")
    checked(given, verifier=right)
    assert seen == [({**given, "sig": ""}, "good")]
    assert refusal(raw(sig="bad"), verifier=right) == "bad_signature"


@pytest.mark.parametrize("service", [
    {**SERVICE, "root": "/etc/a"}, {**SERVICE, "root": "/srv/../etc"}, {**SERVICE, "model_path": "/home"}, {**SERVICE, "artifact_roots": ["/"]},
    {**SERVICE, "manager": "systemd", "unit": "ssh.service"},
])
def test_what_node_toml_does_not_allow_is_refused(service: dict[str, Any]) -> None:
    assert refusal(raw(service=service)) == "refused"


@pytest.mark.parametrize("channel", [
    {"name": "c", "kind": "wheelhouse", "wheelhouse": "/tmp"}, {"name": "c"}, {"name": "c", "kind": "index"}, {"name": "c", "kind": "wheelhouse"},
    {"name": "c", "kind": "index", "extra_index_urls": ["https://allowed.example/simple"]},
    {"name": "c", "kind": "wheelhouse", "wheelhouse": "/\ud800"},
    {"name": "c", "kind": "index", "index_url": "https://index.example/simple"},
])
def test_a_channel_outside_of_node_toml_is_refused(channel: dict[str, Any]) -> None:
    assert refusal(raw(snapshot={"channel": channel})) == "refused"


@pytest.mark.parametrize("root", ["/", "/tmp", "/tmp/vllm/../other", "/home", "relative"])
def test_a_scan_looks_only_into_what_node_toml_allows(root: str) -> None:
    assert refusal(raw(type="artifact-scan", params={"roots": ["/tmp/vllm/traces", root]})) == "refused"
    checked(raw(type="artifact-scan", params={"roots": ["/tmp/vllm", "/tmp/vllm/traces"]}))
    checked(raw(type="artifact-scan", params={"roots": None}, snapshot={"kinds": [{"places": ["/elsewhere"]}]}))  # told by the scan, not refused


def test_job_ids_become_folder_names_so_only_one_form_is_taken() -> None:
    with pytest.raises(Refused):
        check_job_id("{f4db51e2-0000-4000-8000-000000000000}")


@pytest.mark.parametrize("changed", [
    {"name": 5}, {"flags": "--port"}, {"flags": [1]}, {"env": []}, {"env": {"A": 1}}, {"gpus": ["0"]}, {"gpus": [True]}, {"root": "/srv/a\0b"},
    {"root": None}, {"base_url": "file:///etc/passwd"}, {"base_url": "-x"}, {"practice": 1}, {"guards": ["x"]}, {"artifact_roots": "/"},
    {"target_tok_s": [40, "x"]}, {"unit": None}, {"root": "/srv/\ud800"},
], ids=str)
def test_a_service_record_of_the_wrong_form_is_refused_in_words(changed: dict[str, Any]) -> None:
    assert refusal(raw(service={**SERVICE, **changed})) == "refused"


@pytest.mark.parametrize("changed", [{"by": "a\nb"}, {"by": "\u202eanna"}, {"by": "a" * 151}, {"exp": 10**39}, {"exp": 10**400}],
                         ids=lambda changed: str(changed)[:30])
def test_who_asked_is_a_name_and_an_order_does_not_live_for_ever(changed: dict[str, Any]) -> None:
    assert refusal(raw(**changed)) == "refused"
