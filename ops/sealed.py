"""Values that only this node can read: sealed where somebody types them, opened where they are used.

The console has a database, a transport and pages, and none of them may hold the value of a service's variable. So each node has an X25519 key
pair, whose private half never leaves its state folder (`settings.key`, mode 0600); the console seals every value with the public half, which the
node announces, as an anonymous sealed box of libsodium (`crypto_box_seal`), and an order carries base64.

A value is sealed for one variable of one service, whose names lie in the box with it: whoever got hold of the text cannot let the node open it as
another variable, one that is shown.

A value is filled up with NUL to a multiple of 64 bytes before it is sealed, so that the length of a password does not show either.
"""

from __future__ import annotations

import base64
import binascii
import os
import tempfile
from pathlib import Path

from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox

from ops.agent.config import NodePaths
from ops.jobs.errors import BadInput, OpsError
from ops.records import NEVER_IN_TEXT

VALUE_BYTES = 32 * 1024  # of one value, in UTF-8; the kernel itself takes 128 KiB for one variable with its name
_BLOCK = 64  # bytes
_OVERHEAD = 48  # bytes of a sealed box: an ephemeral public key (32) and the authenticator (16)


def public_key(paths: NodePaths) -> str:
    """The node's public half, base64. Makes the pair at the first call. Raises OpsError where the key file cannot be made or read."""
    return base64.b64encode(bytes(_private_key(paths).public_key)).decode("ascii")


def seal(public_key: str, value: str, *, service: str, name: str) -> str:
    """`value` of the variable `name` of `service` so that only the node of that public half can read it, base64.

    Raises BadInput for a key that is none and for a value that no variable can hold, or that is longer than VALUE_BYTES.
    """
    try:
        box = SealedBox(PublicKey(base64.b64decode(public_key, validate=True)))
    except (binascii.Error, ValueError, TypeError, CryptoError) as error:  # nacl's own TypeError and ValueError for another length
        raise BadInput("The node's key for settings cannot be used", why="It is no X25519 public key in base64",
                       hint="Wait for the node's next announcement, and try again") from error
    if NEVER_IN_TEXT.search(value):
        raise BadInput("A value holds a character that no variable can hold", why="NUL, or half of a character")
    plain = value.encode("utf-8")
    if len(plain) > VALUE_BYTES:
        raise BadInput(f"A value is longer than {VALUE_BYTES:,} bytes", hint="Put it into a file, and name the file")
    padding = b"\0" * (-len(plain) % _BLOCK or (0 if plain else _BLOCK))
    return base64.b64encode(box.encrypt(_bound_to(service, name) + plain + padding)).decode("ascii")


def unseal(paths: NodePaths, text: str, *, service: str, name: str) -> str:
    """What was sealed for this node, and for the variable `name` of `service`.

    Raises OpsError (kind "sealed") for what was not, was cut or changed; it never repeats what it was given.
    """
    bound = _bound_to(service, name)
    if not isinstance(text, str) or len(text) > (VALUE_BYTES + _BLOCK + _OVERHEAD + len(bound)) * 4 // 3 + 8:
        raise OpsError("A sealed value is too long, or no text", kind="sealed")
    try:
        plain = SealedBox(_private_key(paths)).decrypt(base64.b64decode(text, validate=True))
        if not plain.startswith(bound):
            raise OpsError(f"A sealed value is not for the variable `{name[:80]}` of service `{service[:80]}`",
                           why="It was sealed for another variable or another service (or by another version of Roundhouse), and nothing else may be "
                               "set with it", hint="Open the form anew and type the value again", kind="sealed")
        value = plain[len(bound):].rstrip(b"\0").decode("utf-8")
    except (binascii.Error, ValueError, TypeError, CryptoError):
        # Without the cause: its text may hold a part of the value
        raise OpsError("A sealed value cannot be opened on this node", why="It was sealed for another key, or was changed on its way",
                       hint="Open the form anew and type the value again: the node announces its key", kind="sealed") from None
    if NEVER_IN_TEXT.search(value):
        raise OpsError("A sealed value holds a character that no variable can hold", why="NUL, or half of a character", kind="sealed")
    return value


def _bound_to(service: str, name: str) -> bytes:
    """What stands before a value in its box. Neither name may hold a NUL (those of records and variables never do), so it reads in one way only."""
    if "\0" in service + name:
        raise BadInput("A name of a service or a variable holds a character that it cannot have", why="NUL")
    return b"".join(one.encode("utf-8", "surrogatepass") + b"\0" for one in (service, name))


def key_path(paths: NodePaths) -> Path:
    return paths.root / "settings.key"


def _private_key(paths: NodePaths) -> PrivateKey:
    """The node's private half; made once, whoever asks first (the agent and a job may ask at the same moment)."""
    path = key_path(paths)
    try:
        if not path.exists():
            _make(path)
        raw = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise OpsError(f"The node's key `{path}` cannot be made or read", why=str(error), hint="Correct the owner of the node's state folder",
                       kind="sealed") from error
    try:
        return PrivateKey(base64.b64decode(raw.strip(), validate=True))
    except (binascii.Error, ValueError, TypeError, CryptoError):
        raise OpsError(f"The node's key `{path}` is no key", why="It was changed, or cut off when it was copied",
                       hint="Remove the file: the node makes another at its next start. Values that were sealed before have to be typed again",
                       kind="sealed") from None


def _make(path: Path) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(base64.b64encode(bytes(PrivateKey.generate())) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # whole, or not at all; of several that make one at the same moment the first one counts
        except FileExistsError:
            return
    finally:
        Path(temporary).unlink(missing_ok=True)
