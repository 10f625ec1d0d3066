"""Is there an OpenAI-compatible chat endpoint at this address, and does it serve this model? Asked before any load is sent."""

from __future__ import annotations

import ssl
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from ops.benchmark.chat_stream import error_text
from ops.jobs.errors import BadInput, OpsError

PRACTICE_MARK = "+practice"


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
            answer = http.get(f"{base}/v1/models")
        except httpx.HTTPError as error:
            raise unreachable(base, error) from error
        except httpx.InvalidURL as error:
            raise BadInput(f"`{base}` is not the address of a server", why=str(error)) from error
        document = _json(answer)
        if answer.status_code in (401, 403):
            raise OpsError(f"{base} refuses the API key (HTTP {answer.status_code})", why=error_text(document), kind="unauthorized",
                           hint="Put the key into an environment variable and name it: --api-key-env NAME")
        listed = document.get("data") if isinstance(document, dict) else None
        if answer.status_code != 200 or not isinstance(listed, list):
            raise OpsError(f"{base}/v1/models does not answer as an OpenAI-compatible server does", kind="not_openai",
                           why=f"HTTP {answer.status_code}: {error_text(document) or answer.text[:200] or 'no text'}",
                           hint="Is this the address of the API server (for vLLM http://host:8000)?")
        models = [str(entry["id"]) for entry in listed if isinstance(entry, dict) and "id" in entry]
        lengths = {str(entry["id"]): int(entry["max_model_len"]) for entry in listed
                   if isinstance(entry, dict) and "id" in entry and isinstance(entry.get("max_model_len"), int)}
        version = _version(http, base)
    return Endpoint(base, models, lengths, version, None if version is None else version.endswith(PRACTICE_MARK))


def require_model(endpoint: Endpoint, model: str) -> None:
    """Raises BadInput naming the models that the server has."""
    if model not in endpoint.models:
        raise BadInput(f"{endpoint.base_url} does not serve a model `{model[:200]}`", kind="wrong_model",
                       hint=f"It serves: {', '.join(endpoint.models) or 'none'}", valid=endpoint.models)


def only_model(endpoint: Endpoint) -> str:
    """The one model of the server. Raises BadInput if it has none or several."""
    if len(endpoint.models) == 1:
        return endpoint.models[0]
    listed = ", ".join(endpoint.models) or "none"
    raise BadInput(f"{endpoint.base_url} serves {len(endpoint.models)} models; say which", hint=f"--model, one of: {listed}")


def require_practice(endpoint: Endpoint, practice: bool | None) -> bool:
    """Whether numbers from it are practice. Raises OpsError if the record says one thing and the server another."""
    if practice is not None and endpoint.practice is not None and practice != endpoint.practice:
        if endpoint.practice:
            raise OpsError(f"{endpoint.base_url} is a practice server (version {endpoint.version}), but its service is recorded as a real one",
                           kind="practice_mismatch", hint="Practice numbers must not mix with real ones: correct the service's address")
        raise OpsError(f"{endpoint.base_url} is a real server (version {endpoint.version}), but its service is recorded as practice",
                       kind="practice_mismatch", hint="Practice numbers must not mix with real ones: correct the service's address")
    return bool(endpoint.practice if endpoint.practice is not None else practice)


def _version(http: httpx.Client, base: str) -> str | None:
    try:
        answer = http.get(f"{base}/version")
    except httpx.HTTPError:
        return None  # /v1/models has just answered: a server that drops /version has none
    document = _json(answer)
    if answer.status_code != 200 or not isinstance(document, dict) or not isinstance(document.get("version"), str):
        return None
    return document["version"]


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested without end
        return None
