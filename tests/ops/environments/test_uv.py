from __future__ import annotations

import dataclasses
import http.server
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ops.environments import integrity, packages, uv, wheelhouse
from ops.jobs.errors import BadInput, CommandFailed, OpsError
from ops.records import Channel
from tests.fakes.package_index import Index, package_index
from tests.fakes.wheels import make_wheel


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """An index on loopback with the wheels in `tmp_path/wheels`."""
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "serving", "1.0", requires=["numbers>=2"])
    make_wheel(wheels, "numbers", "2.1")
    with package_index(wheels) as served:
        yield served


@pytest.fixture
def local(index: Index) -> Channel:
    return Channel(name="local", kind="index", index_url=index.url, prerelease=False)


@pytest.fixture
def ours(tmp_path: Path) -> uv.Uv:
    return uv.Uv(cache=tmp_path / "cache")


@contextmanager
def answering(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A server on loopback that answers every request in that way; gives its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_HEAD = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    server.shutdown()
    thread.join()
    server.server_close()


def says(status: int, body: bytes = b"", kind: str = "text/html", length: int | None = None) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body) if length is None else length))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)

    return answer


def lock_file(path: Path, locked: list[uv.LockedPackage]) -> Path:
    path.write_text("".join(f"{package.pin} --hash=sha256:{package.wheels[0].sha256}\n" for package in locked))
    return path


def library(env: Path) -> Path:
    return env / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def test_an_index_channel_resolves_with_hashes(local: Channel, ours: uv.Uv, tmp_path: Path):
    found = ours.lock(["serving"], local, python=sys.executable)
    assert [(package.name, package.version) for package in found] == [("numbers", "2.1"), ("serving", "1.0")]
    assert found[1].wheels[0].sha256 == wheelhouse.sha256(tmp_path / "wheels" / "serving-1.0-py3-none-any.whl")


def test_a_resolution_does_not_fill_the_log_with_what_it_came_to(local: Channel, ours: uv.Uv):
    """uv prints it beside the file: some thousand lines for a serving stack."""
    said: list[str] = []
    dataclasses.replace(ours, log=said.append).lock(["serving"], local, python=sys.executable)
    assert said and all(line.startswith("Resolved") for line in said)


def test_origins_come_from_the_cache_without_asking_the_index_again(index: Index, local: Channel, ours: uv.Uv):
    found = ours.lock(["serving"], local, python=sys.executable)
    asked = len(index.asked)
    assert ours.origins(found, ["serving"], local, python=sys.executable) == {"numbers": uv.Origin(["serving"], index.url),
                                                                              "serving": uv.Origin([], index.url)}
    assert ours.lock(["serving", "numbers"], local, python=sys.executable, among=found) == found
    assert len(index.asked) == asked


def test_where_the_cache_lacks_something_the_index_is_asked(index: Index, local: Channel, ours: uv.Uv, tmp_path: Path):
    found = ours.lock(["serving"], local, python=sys.executable)
    make_wheel(tmp_path / "wheels", "more", "1.0")
    more = ours.lock(["serving", "more"], local, python=sys.executable, among=found)
    assert [package.name for package in more] == ["more", "numbers", "serving"]
    make_wheel(tmp_path / "wheels", "older", "1.0", requires=["numbers<3"])
    make_wheel(tmp_path / "wheels", "newest", "1.0", requires=["numbers<2"])
    with pytest.raises(uv.NoSolution):
        ours.lock(["serving", "newest"], local, python=sys.executable, among=found)


def test_an_index_without_hashes_has_its_wheels_fetched_to_learn_them(tmp_path: Path, ours: uv.Uv):
    """As vLLM's nightly index is: links without a hash."""
    wheel = make_wheel(tmp_path / "wheels", "serving", "1.0")

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        file = request.path.endswith(".whl")
        says(200, wheel.read_bytes() if file else f'<a href="../../files/{wheel.name}">{wheel.name}</a>'.encode())(request)

    with answering(answer) as address:
        (found,) = ours.lock(["serving"], Channel(name="nightly", kind="index", index_url=address), python=sys.executable)
    assert found.wheels[0].sha256 == wheelhouse.sha256(wheel) and found.wheels[0].size_bytes is None


# An index that does not do what it should


def test_an_index_that_does_not_answer_says_so(local: Channel, ours: uv.Uv, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(uv.ENVIRONMENT, "UV_HTTP_RETRIES", "0")  # so that the test need not wait for three tries
    channel = dataclasses.replace(local, extra_index_urls=["http://127.0.0.1:9/simple"])
    with pytest.raises(OpsError) as caught:
        ours.lock(["serving"], channel, python=sys.executable)
    assert caught.value.what == "An index of the channel `local` does not answer" and caught.value.kind == "index_unreachable"


def test_an_index_that_says_nothing_is_given_up(ours: uv.Uv, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(uv.ENVIRONMENT, "UV_HTTP_RETRIES", "0")
    monkeypatch.setitem(uv.ENVIRONMENT, "UV_HTTP_TIMEOUT", "1")
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "3600")  # ours counts, not the one from outside
    ended = threading.Event()
    with answering(lambda request: ended.wait(30) and None) as address:
        with pytest.raises(OpsError) as caught:
            ours.lock(["serving"], Channel(name="slow", kind="index", index_url=address), python=sys.executable)
        ended.set()
    assert caught.value.what.startswith("An index of the channel `slow` did not answer within 1 s (http://127.0.0.1:")
    assert caught.value.kind == "index_unreachable"


@pytest.mark.parametrize("answer, what, kind", [
    (says(500), "answers 500 Internal Server Error", "index_unreachable"), (says(503), "answers 503 Service Unavailable", "index_unreachable"),
    (says(429), "answers 429 Too Many Requests", "index_unreachable"), (says(403), "refuses: 403 Forbidden", "index_unreachable"),
    (says(401), "refuses: 401 Unauthorized", "index_unreachable"), (says(404), "has no package `serving`", "no_solution"),
    (says(200, b"<html>Log in</html>"), "lists no version of `serving`", "no_solution"),
    (says(200, b"\0\1\2" * 500), "lists no version of `serving`", "no_solution"),
    (says(200, b"hello", kind="text/plain"), "is no package index", "bad_index"),
    (says(200, b'{"no', kind="application/vnd.pypi.simple.v1+json"), "is no package index", "bad_index"),
    (says(200, b"<a", length=5000), "does not answer", "index_unreachable")])
def test_what_a_wrong_index_says_is_told_plainly(ours: uv.Uv, monkeypatch: pytest.MonkeyPatch, answer, what: str, kind: str):
    monkeypatch.setitem(uv.ENVIRONMENT, "UV_HTTP_RETRIES", "0")
    with answering(answer) as address, pytest.raises(OpsError) as caught:
        ours.lock(["serving"], Channel(name="local", kind="index", index_url=address), python=sys.executable)
    assert what in caught.value.what and "channel `local`" in caught.value.what
    assert caught.value.kind == kind and caught.value.hint


@pytest.mark.parametrize("version", ["3.99", "3", "2.7", "-x", "3.1\u0661", "/usr/bin/python3", "3.12\n--x", "x" * 1_000_000])
def test_an_interpreter_that_this_machine_does_not_have_says_so(ours: uv.Uv, version: str):
    with pytest.raises(BadInput):
        ours.find_python(version)


# Installing


def test_sync_leaves_exactly_the_lock(index: Index, local: Channel, ours: uv.Uv, tmp_path: Path):
    env, found = tmp_path / "env", ours.lock(["serving"], local, python=sys.executable)
    lock = lock_file(tmp_path / "lock.txt", found)
    ours.venv(env, python=sys.executable)
    make_wheel(tmp_path / "wheels", "stale", "1.0")
    stale = ours.lock(["stale"], local, python=sys.executable)
    ours.install(env, lock_file(tmp_path / "stale.txt", stale), local)
    assert (library(env) / "stale").is_dir()
    ours.fetch(lock, local, sys.executable)
    asked = len(index.asked)
    ours.sync(env, lock, local, offline=True)
    assert sorted(packages.read(env).versions()) == ["numbers", "serving"]
    (library(env) / "serving" / "__init__.py").write_text("edited = 1\n")
    ours.sync(env, lock, local, offline=True)
    assert "edited" not in (library(env) / "serving" / "__init__.py").read_text()
    assert len(index.asked) == asked  # while a service is down no index can keep it down
    assert integrity.check(env).clean


def test_fetched_wheels_install_without_the_index(index: Index, local: Channel, ours: uv.Uv, tmp_path: Path):
    found = ours.lock(["serving"], local, python=sys.executable)
    lock = lock_file(tmp_path / "lock.txt", found)
    assert ours.at_hand("serving", "serving-1.0-py3-none-any.whl") is None
    ours.fetch(lock, local, sys.executable)
    assert ours.at_hand("serving", "serving-1.0-py3-none-any.whl") is not None
    assert not list(ours.cache.glob("fetch-*"))  # nothing is left of how it was done
    asked = len(index.asked)
    ours.venv(tmp_path / "env", python=sys.executable)
    ours.install(tmp_path / "env", lock, local, offline=True)
    assert packages.read(tmp_path / "env").versions() == {"numbers": "2.1", "serving": "1.0"} and len(index.asked) == asked
    assert (library(tmp_path / "env") / "serving" / "__init__.py").stat().st_nlink == 1


def test_a_wheelhouse_is_fetched_into_the_cache_too(local: Channel, ours: uv.Uv, tmp_path: Path):
    house = Channel(name="house", kind="wheelhouse", wheelhouse=str(tmp_path / "wheels"))
    found = ours.lock(["serving"], house, python=sys.executable)
    lock = tmp_path / "lock.txt"
    lock.write_text("".join(f"{one.pin} --hash=sha256:{wheelhouse.sha256(next((tmp_path / 'wheels').glob(one.name + '-*')))}\n" for one in found))
    ours.fetch(lock, house, sys.executable)
    assert ours.at_hand("numbers", "numbers-2.1-py3-none-any.whl") is not None


def test_wheels_with_many_tags_are_found_in_the_cache_too(local: Channel, ours: uv.Uv, tmp_path: Path):
    tag = "py3-none-manylinux1_x86_64.manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64"
    wheel = make_wheel(tmp_path / "wheels", "tagged", "1.0", tag=tag)
    lock = lock_file(tmp_path / "lock.txt", ours.lock(["tagged"], local, python=sys.executable))
    assert ours.at_hand("tagged", wheel.name) is None
    ours.fetch(lock, local, sys.executable)
    assert ours.at_hand("tagged", wheel.name) is not None
    assert ours.at_hand("tagged", wheel.name.replace("1.0", "1.1")) is None


def test_clean_cache_drops_these_packages_and_no_others(local: Channel, ours: uv.Uv, tmp_path: Path):
    lock = lock_file(tmp_path / "lock.txt", ours.lock(["serving"], local, python=sys.executable))
    ours.fetch(lock, local, sys.executable)
    ours.clean_cache([])
    assert ours.at_hand("serving", "serving-1.0-py3-none-any.whl") is not None
    ours.clean_cache(["Serving"])
    assert ours.at_hand("serving", "serving-1.0-py3-none-any.whl") is None
    assert ours.at_hand("numbers", "numbers-2.1-py3-none-any.whl") is not None


@pytest.mark.parametrize("name", ["-x", "--force", "a\nb", "$(id)", "../x", "a @ file:///x", "", "x" * 1_000_000])
def test_clean_cache_takes_names_only(ours: uv.Uv, name: str):
    with pytest.raises(BadInput):
        ours.clean_cache([name])


def test_another_file_under_the_same_name_is_told(local: Channel, ours: uv.Uv, tmp_path: Path):
    lock = lock_file(tmp_path / "lock.txt", ours.lock(["numbers"], local, python=sys.executable))
    make_wheel(tmp_path / "wheels", "numbers", "2.1", files={"numbers.py": "other = 1\n"})
    ours.venv(tmp_path / "env", python=sys.executable)
    with pytest.raises(OpsError) as caught:
        uv.Uv(cache=tmp_path / "other").install(tmp_path / "env", lock, local)
    assert caught.value.kind == "hash_mismatch", str(caught.value)
    assert "numbers" in caught.value.what


def test_a_source_distribution_is_never_built(index: Index, tmp_path: Path):
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


def test_an_interpreter_that_is_gone_says_so(tmp_path: Path, index: Index):
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
    ("Because the current Python version (3.11.7) does not satisfy all of: Python>=3.12,<3.14.1 Python>3.14.1 and networkx==3.7 depends on one of: "
     "Python>=3.12,<3.14.1 Python>3.14.1 we can conclude that networkx==3.7 cannot be used. And because only networkx<=3.7 is available and "
     "torch==2.11.0 depends on networkx==3.7, we can conclude that your requirements are unsatisfiable.",
     "`networkx==3.7` does not support Python 3.11.7, which is the interpreter"),
])
def test_no_solution_is_told_in_one_sentence(text: str, sentence: str):
    told = uv.explain(["error: No solution found when resolving dependencies", f"  cause: {text}"], CommandFailed("uv failed"))
    assert isinstance(told, uv.NoSolution) and told.what == sentence and told.why == text


def house(folder: Path, *wheels: tuple[str, str, list[str]], **options: str) -> Channel:
    for name, number, requires in wheels:
        make_wheel(folder, name, number, requires=requires, **options)
    return Channel(name="house", kind="wheelhouse", wheelhouse=str(folder))


@pytest.mark.parametrize("wheels, asked, what, conflicts", [
    ([("vllm", "1", ["torch==2.9.1"]), ("torch", "2.9.1", []), ("torch", "2.10", [])], ["vllm", "torch==2.10"],
     "`vllm` needs `torch==2.9.1`, but `torch==2.10` is asked for", ["`vllm` needs `torch==2.9.1`", "`torch==2.10` is asked for"]),
    ([("vllm", "1", ["torch==2.9.1"]), ("cubin", "1", ["torch==2.10"]), ("torch", "2.9.1", []), ("torch", "2.10", [])], ["vllm==1", "cubin==1"],
     "`cubin` needs `torch==2.10`, but `vllm` needs `torch==2.9.1`", ["`vllm==1` is asked for", "`cubin==1` is asked for"]),
    ([("vllm", "1", ["numba==1"]), ("numba", "1", ["numpy<2"]), ("numpy", "1", []), ("numpy", "2", [])], ["vllm==1", "numpy==2"],
     "`numba` needs `numpy<2`, but `numpy==2` is asked for", ["`vllm` needs `numba==1`", "`vllm==1` is asked for"]),
    ([("vllm", "1", [])], ["vllm>=2"], "The channel `house` has no `vllm>=2`, only `vllm==1`", []),
    ([("vllm", "1", [])], ["vllm==2"], "The channel `house` has no `vllm` 2", []),
    ([("vllm", "1", ["torch"])], ["vllm"], "The channel `house` has no package `torch`", []),
])
def test_no_solution_says_what_conflicts_with_what(ours: uv.Uv, tmp_path: Path, wheels, asked: list[str], what: str, conflicts: list[str]):
    channel = house(tmp_path / "house", *wheels)
    with pytest.raises(uv.NoSolution) as caught:
        ours.lock(asked, channel, python=sys.executable)
    assert caught.value.what == what, str(caught.value)
    assert set(conflicts) <= set(caught.value.facts["conflicts"]), caught.value.facts
    assert "unsatisfiable" in caught.value.why


@pytest.mark.parametrize("options, what", [
    ({"tag": "py3-none-win_amd64"}, "The channel `house` has no wheel of `vllm==1` for this machine"),
    ({"tag": "cp38-cp38-manylinux1_x86_64"}, "The channel `house` has no wheel of `vllm==1` for this Python"),
    ({"requires_python": ">=3.99"}, "`vllm==1` needs Python >=3.99, which this interpreter is not")])
def test_wheels_for_another_machine_or_python_are_told(ours: uv.Uv, tmp_path: Path, options: dict[str, str], what: str):
    channel = house(tmp_path / "house", ("vllm", "1", []), **options)
    with pytest.raises(uv.NoSolution) as caught:
        ours.lock(["vllm==1"], channel, python=sys.executable)
    assert caught.value.what.startswith(what), str(caught.value)


def test_real_conflicts_of_the_public_index_are_told(tmp_path_factory: pytest.TempPathFactory):
    public = Channel(name="public", kind="index", index_url="public", prerelease=False)
    ours = uv.Uv(cache=tmp_path_factory.mktemp("registry"))
    for asked, what in (
        (["vllm==0.25.1", "torch==2.9.1"], "`vllm==0.25.1` needs `torch==2.11.0`, but `torch==2.9.1` is asked for"),
        (["vllm==0.25.1", "flashinfer-python==0.6.4"],
         "`vllm==0.25.1` needs `flashinfer-python==0.6.13`, but `flashinfer-python==0.6.4` is asked for"),
        (["vllm==0.25.1", "numpy<1"], "`numba==0.65.0` needs `numpy>=1.22,<2.5`, but `numpy<1` is asked for"),
        (["flashinfer-cubin==0.6.14"], "The channel `public` has no `flashinfer-cubin` 0.6.14"),
    ):
        with pytest.raises(uv.NoSolution) as caught:
            ours.lock(asked, public, python=sys.executable)
        assert caught.value.what == what, str(caught.value)


def test_the_wheel_that_the_interpreter_takes_is_the_most_specific_one():
    files = ["x-1.0-py3-none-any.whl", "x-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", "x-1.0-cp312-cp312-manylinux_2_17_x86_64.whl",
             "x-1.0-cp38-abi3-manylinux_2_17_x86_64.whl", "x-1.0-cp311-cp311-win_amd64.whl"]
    assert wheelhouse.best(files, "3.11.7") == files[1]
    assert wheelhouse.best(files, "3.13.0") == files[3]
    assert wheelhouse.best(files[4:], "3.11.7") is None


def test_what_uv_said_is_kept_where_it_names_no_error():
    said = [f"line {number}" for number in range(50)]
    told = uv.explain(said, CommandFailed("`uv` failed with exit code 101", argv=["uv", "venv", "/x"], code=101, tail=""))
    assert told.what == "`uv` failed with exit code 101"
    assert all(line in told.why for line in said[-uv.KEPT_LINES:]) and "The command was: uv venv /x" in told.why
    silent = uv.explain([], CommandFailed("`uv` failed with exit code 2", argv=["uv", "venv"], code=2, tail=""))
    assert "It printed nothing" in silent.why and "uv venv" in silent.why


def test_a_killed_uv_is_said_to_be_killed():
    told = uv.explain([], CommandFailed("`uv` failed with signal 9", argv=["uv"], code=-9, tail=""))
    assert told.what == "uv was killed" and "memory" in told.hint
    assert uv.explain(["what?"], CommandFailed("`uv` failed with exit code 2", argv=["uv"], code=2, tail="")).what == "`uv` failed with exit code 2"
