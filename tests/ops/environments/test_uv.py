from __future__ import annotations

import dataclasses
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.environments import uv, wheelhouse
from ops.jobs.errors import BadInput, CommandFailed, OpsError
from ops.records import Channel
from tests.fakes.wheels import make_wheel


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A package index on loopback (PEP 503) with the wheels in `tmp_path/wheels`; gives its address."""
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "serving", "1.0", requires=["numbers>=2"])
    make_wheel(wheels, "numbers", "2.1")

    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = self.path.strip("/").split("/")
            if parts[0] == "files":
                body, kind = (wheels / parts[1]).read_bytes(), "application/octet-stream"
            else:
                found = [path for path in wheels.glob("*.whl") if path.name.startswith(f"{parts[-1]}-")]
                if not found:
                    self.send_error(404)
                    return
                body = "".join(f'<a href="/files/{path.name}#sha256={wheelhouse.sha256(path)}">{path.name}</a>' for path in found).encode()
                kind = "text/html"
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_GET  # what follows the headers then is ignored: the connection is closed

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_index_channel_resolves_with_hashes(index: str, tmp_path: Path):
    channel = Channel(name="local", kind="index", index_url=index, prerelease=False)
    found = uv.Uv(cache=tmp_path / "cache").lock(["serving"], channel, python=sys.executable)
    assert [(package.name, package.version) for package in found] == [("numbers", "2.1"), ("serving", "1.0")]
    assert found[1].wheels[0].sha256 == wheelhouse.sha256(tmp_path / "wheels" / "serving-1.0-py3-none-any.whl")
    origins = uv.Uv(cache=tmp_path / "cache").origins(found, ["serving"], channel, python=sys.executable)
    assert origins == {"numbers": uv.Origin(["serving"], index), "serving": uv.Origin([], index)}


def test_an_index_that_does_not_answer_says_so(index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    channel = Channel(name="local", kind="index", index_url=index, extra_index_urls=["http://127.0.0.1:9/simple"])
    monkeypatch.setitem(uv.ENVIRONMENT, "UV_HTTP_RETRIES", "0")  # so that the test need not wait for three tries
    with pytest.raises(OpsError) as caught:
        uv.Uv(cache=tmp_path / "cache").lock(["serving"], channel, python=sys.executable)
    assert caught.value.what == "An index of the channel `local` does not answer" and caught.value.kind == "index_unreachable"


def test_a_source_distribution_is_never_built(index: str, tmp_path: Path):
    import tarfile

    (tmp_path / "setup.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    with tarfile.open(tmp_path / "wheels" / "trap-1.0.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "setup.py", "trap-1.0/setup.py")
    with pytest.raises(BadInput):
        uv.Uv(cache=tmp_path / "cache").lock(["trap"], Channel(name="house", kind="wheelhouse", wheelhouse=str(tmp_path / "wheels")),
                                             python=sys.executable)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("address", ["", "ftp://example.org", "file:///tmp", "-x", "https://", "https://user:pw@example.org/simple",
                                     "https://example.org/\n--x", "https://exa mple.org"])
def test_bad_index_addresses_are_refused(address: str):
    with pytest.raises(BadInput):
        uv.index_url(address)


def test_a_strategy_that_takes_the_best_match_of_all_indexes_is_refused():
    with pytest.raises(BadInput):
        uv.source(Channel(name="c", kind="index", index_url="https://example.org", index_strategy="unsafe-best-match"))


def test_a_wheelhouse_that_is_not_there_says_so(tmp_path: Path):
    channel = Channel(name="c", kind="wheelhouse", wheelhouse=str(tmp_path / "none"))
    with pytest.raises(BadInput, match="does not exist"):
        uv.source(channel)
    with pytest.raises(BadInput, match="absolute path"):
        uv.source(dataclasses.replace(channel, wheelhouse="relative"))


def test_a_comma_in_the_wheelhouse_path_is_refused(tmp_path: Path):
    (tmp_path / "a,b").mkdir()
    with pytest.raises(BadInput, match="has a comma"):
        uv.source(Channel(name="c", kind="wheelhouse", wheelhouse=str(tmp_path / "a,b")))


def test_an_interpreter_that_is_gone_says_so(tmp_path: Path, index: str):
    channel = Channel(name="c", kind="wheelhouse", wheelhouse=str(tmp_path / "wheels"))
    with pytest.raises(OpsError, match="No interpreter found"):
        uv.Uv(cache=tmp_path / "cache").lock(["serving"], channel, python="/no/such/python")


@pytest.mark.parametrize("text, sentence", [
    ("Because there is no version of numpy==1.0.99 and you require numpy==1.0.99, we can conclude that your requirements are unsatisfiable.",
     "The channel has no `numpy` 1.0.99"),
    ("Because nothing was not found in the package registry and you require nothing, we can conclude that your requirements are unsatisfiable.",
     "The channel has no package `nothing`"),
    ("Because a==1 depends on torch==2.9.1 and b==2 depends on torch==2.10.0, we can conclude that a==1 and b==2 are incompatible.",
     "`a==1` needs `torch==2.9.1`, but `b==2` needs `torch==2.10.0`"),
])
def test_no_solution_is_told_in_one_sentence(text: str, sentence: str):
    told = uv.explain(["error: No solution found when resolving dependencies", f"  cause: {text}"], CommandFailed("uv failed"))
    assert isinstance(told, uv.NoSolution) and told.what == sentence and told.why == text


def test_the_wheel_that_the_interpreter_takes_is_the_most_specific_one():
    files = ["x-1.0-py3-none-any.whl", "x-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", "x-1.0-cp312-cp312-manylinux_2_17_x86_64.whl",
             "x-1.0-cp38-abi3-manylinux_2_17_x86_64.whl", "x-1.0-cp311-cp311-win_amd64.whl"]
    assert wheelhouse.best(files, "3.11.7") == files[1]
    assert wheelhouse.best(files, "3.13.0") == files[3]
    assert wheelhouse.best(files[4:], "3.11.7") is None


def test_a_killed_uv_is_said_to_be_killed():
    told = uv.explain([], CommandFailed("`uv` failed with signal 9", argv=["uv"], code=-9, tail=""))
    assert told.what == "uv was killed" and "memory" in told.hint
    assert uv.explain(["what?"], CommandFailed("`uv` failed with exit code 2", argv=["uv"], code=2, tail="")).what == "`uv` failed with exit code 2"
