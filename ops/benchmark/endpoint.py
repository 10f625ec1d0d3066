"""Is there an OpenAI-compatible chat endpoint at this address, and does it serve this model? Asked before any load is sent."""

from __future__ import annotations

import html
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from ops.benchmark.chat_stream import error_text
from ops.jobs.errors import BadInput, OpsError

PRACTICE_MARK = "+practice"
MAX_ANSWER = 8 * 1024 * 1024  # bytes, unpacked
MODELS_TOLD = 20
MAX_PAGE = 20_000  # bytes of a web page that are looked at


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the server says of itself. `version` and `practice` are None where it has no `/version` (not vLLM)."""

    base_url: str  # without /v1
    models: list[str] = field(default_factory=list)
    max_model_len: dict[str, int] = field(default_factory=dict)
    version: str | None = None
    practice: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def normalise(url: str) -> str:
    """The address without `/v1` and what may follow it. Raises BadInput if it is not an http(s) address."""
    text = url.strip()
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        why = "" if not text or "://" in text else "It does not say http:// or https://"
        raise BadInput(f"`{url[:200]}` is not the address of a server", why=why,
                       hint=f"Write it as {f'http://{text[:200]}' if why else 'http://127.0.0.1:8000'}")
    try:
        _ = parts.port
    except ValueError as error:
        raise BadInput(f"`{url[:200]}` has no valid port", why=str(error)) from error
    if parts.username or parts.password:
        raise BadInput("The address holds a user name or password", hint="Give an API key through an environment variable: --api-key-env NAME")
    if parts.query or parts.fragment:
        raise BadInput(f"`{url[:200]}` has a query or fragment", hint="Write it as http://127.0.0.1:8000")
    try:
        parts.hostname.encode("idna")
    except UnicodeError as error:  # an empty label, one of more than 63 characters
        raise BadInput(f"`{url[:200]}` has no valid host name", why=str(error)) from error
    path = parts.path.rstrip("/")
    if path.endswith("/v1/completions"):
        raise BadInput(f"`{url[:200]}` is the completions endpoint; Roundhouse measures chat completions unless told otherwise",
                       why="Completions bypass the chat template and hide a reasoning model's thinking",
                       hint=f"Use {text[: text.index('/v1/')]}; with --completions if completions are what you want to measure")
    for ending in ("/v1/chat/completions", "/v1/models", "/v1"):
        if path.endswith(ending):
            path = path[: -len(ending)]
            break
    return f"{parts.scheme}://{parts.netloc}{path}"


def client(*, api_key: str = "", timeout_s: float = 10.0) -> httpx.Client:
    """For calls outside the load: no proxy or netrc from the environment, no redirects."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.Client(timeout=timeout_s, trust_env=False, follow_redirects=False, headers=headers, verify=tls_context())


def tls_context() -> ssl.SSLContext:
    """Verifies against the system's certificates (SSL_CERT_FILE and SSL_CERT_DIR are obeyed)."""
    return ssl.create_default_context()


def unreachable(base_url: str, error: Exception) -> OpsError:
    """The error for a server that does not answer."""
    why = str(error) or type(error).__name__
    hint = "Is the server running, and is this its address and port?"
    if base_url.startswith("https:") and "certificate" not in why.lower() and any(word in why for word in ("_ssl.c", "SSL", "handshake")):
        hint = f"Does it speak TLS at all? vLLM does not unless it was started with a certificate: http{base_url.removeprefix('https')}"
    return OpsError(f"No answer from {base_url}", why=why, hint=hint, kind="unreachable")


def inspect(base_url: str, *, api_key: str = "", timeout_s: float = 10.0) -> Endpoint:
    """Reads `/v1/models` and `/version`.

    Raises BadInput for an address that is none, OpsError (kind `unreachable`, `unauthorized`, `not_openai`) otherwise.
    """
    base = normalise(base_url)
    with client(api_key=api_key, timeout_s=timeout_s) as http:
        try:
            status, body = ask(http, "GET", f"{base}/v1/models", timeout_s=timeout_s)
        except httpx.HTTPError as error:
            raise unreachable(base, error) from error
        except httpx.InvalidURL as error:
            raise BadInput(f"`{base}` is not the address of a server", why=str(error)) from error
        document = as_json(body)
        if status in (401, 403):
            raise OpsError(f"{base} refuses the API key (HTTP {status})", why=error_text(document)[:500], kind="unauthorized",
                           hint="Put the key into an environment variable and name it: --api-key-env NAME")
        listed = document.get("data") if isinstance(document, dict) else None
        if status != 200 or not isinstance(listed, list):
            said = error_text(document)[:500] or _said(body)
            raise OpsError(f"{base}/v1/models does not answer as an OpenAI-compatible server does", kind="not_openai", why=f"HTTP {status}: {said}",
                           hint="Is this the address of the API server (for vLLM http://host:8000)?")
        named = [entry for entry in listed if isinstance(entry, dict) and _is_name(entry.get("id"))]
        models = [entry["id"] for entry in named]
        lengths = {entry["id"]: length for entry in named
                   if isinstance(length := entry.get("max_model_len"), int) and not isinstance(length, bool) and length > 0}
        version = _version(http, base, timeout_s)
    return Endpoint(base, models, lengths, version, None if version is None else version.endswith(PRACTICE_MARK))


def require_model(endpoint: Endpoint, model: str) -> None:
    """Raises BadInput naming the models that the server has."""
    if model not in endpoint.models:
        raise BadInput(f"{endpoint.base_url} does not serve a model `{model[:200]}`", kind="wrong_model",
                       hint=f"It serves: {_listed(endpoint.models)}", valid=endpoint.models[:MODELS_TOLD])


def only_model(endpoint: Endpoint) -> str:
    """The one model of the server. Raises BadInput if it has none or several."""
    if len(endpoint.models) == 1:
        return endpoint.models[0]
    raise BadInput(f"{endpoint.base_url} serves {len(endpoint.models)} models; say which", hint=f"--model, one of: {_listed(endpoint.models)}")


def require_practice(endpoint: Endpoint, practice: bool | None) -> bool:
    """Whether numbers from it are practice. Raises OpsError if the record says one thing and the server another."""
    if practice is not None and endpoint.practice is not None and practice != endpoint.practice:
        if endpoint.practice:
            raise OpsError(f"{endpoint.base_url} is a practice server (version {endpoint.version}), but its service is recorded as a real one",
                           kind="practice_mismatch", hint="Practice numbers must not mix with real ones: correct the service's address")
        raise OpsError(f"{endpoint.base_url} is a real server (version {endpoint.version}), but its service is recorded as practice",
                       kind="practice_mismatch", hint="Practice numbers must not mix with real ones: correct the service's address")
    return bool(endpoint.practice if endpoint.practice is not None else practice)


def ask(http: httpx.Client, method: str, url: str, *, timeout_s: float, json: Any = None) -> tuple[int, bytes]:
    """Status and body of a call outside the load. Raises httpx.HTTPError, InvalidURL.

    `timeout_s` is the client's own for each wait; an answer that drips on within it is over after twice as long.
    """
    sockets: list[socket.socket] = []

    def traced(event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete" and (made := info["return_value"].get_extra_info("socket")) is not None:
            sockets.append(made)

    with _ends(sockets, 2 * timeout_s) as late:
        try:
            with http.stream(method, url, json=json, extensions={"trace": traced}) as answer:
                body = b""
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > MAX_ANSWER:
                        raise httpx.ReadError(f"The answer is longer than {MAX_ANSWER // 1024**2} MiB")
                if late():
                    raise httpx.ReadTimeout(f"No whole answer within {2 * timeout_s:g} s")
                return answer.status_code, body
        except (httpx.ReadError, httpx.RemoteProtocolError) as error:
            if late():
                raise httpx.ReadTimeout(f"No whole answer within {2 * timeout_s:g} s") from error
            raise


@contextmanager
def _ends(sockets: list[socket.socket], after_s: float) -> Iterator[Callable[[], bool]]:
    """Shuts the sockets (those that are in the list by then) after that time, so that whoever reads from them is told of an end."""
    over = threading.Event()

    def end() -> None:
        over.set()
        for one in sockets:
            with suppress(OSError):  # it has been closed meanwhile
                one.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(after_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield over.is_set
    finally:
        timer.cancel()
        timer.join()


def as_json(body: bytes) -> Any:
    """The document in an answer, or None if it is not JSON, not text, or nested without end."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _said(body: bytes) -> str:
    """An answer that is no error of an API: the title of a web page, else the text's beginning."""
    text = body[:MAX_PAGE].decode("utf-8", "replace")
    if not text.lstrip().startswith("<"):
        return text[:200] or "no text"
    title = re.search(r"<title[^>]*>([^<]{1,200})", text, re.IGNORECASE)
    words = " ".join(html.unescape(title[1]).split()) if title else ""
    return f"a web page, \"{words}\"" if words else "a web page"


def _is_name(value: Any) -> bool:
    """A model's name that can be sent back: half of a surrogate pair cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _listed(models: list[str]) -> str:
    told = ", ".join(name[:200] for name in models[:MODELS_TOLD]) or "none"
    return told + (f" and {len(models) - MODELS_TOLD} more" if len(models) > MODELS_TOLD else "")


def _version(http: httpx.Client, base: str, timeout_s: float) -> str | None:
    try:
        status, body = ask(http, "GET", f"{base}/version", timeout_s=timeout_s)
    except httpx.HTTPError:
        return None  # /v1/models has just answered: a server that drops /version has none
    document = as_json(body)
    version = document.get("version") if status == 200 and isinstance(document, dict) else None
    return version[:200] if isinstance(version, str) and _is_name(version) else None
