"""From a name to files on this machine: a folder that is here, or a model of the hub, from its cache or over the network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unmask.errors import UserError

HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
HUB_FILES = ["*.json", "*vocab.txt", "*merges.txt", "*.model", "*.safetensors"]
PATIENCE = 10.0  # seconds to wait for a host that says nothing


def locate(name: str | Path) -> Path:
    """A folder (or file) here, else a model of the hub, from its cache or over the network."""
    path = Path(name)
    try:
        if (path := path.expanduser()).exists():
            return path
    except (OSError, RuntimeError):  # too long for a name, or the home of nobody
        pass
    if not isinstance(name, str) or not HUB_NAME.fullmatch(name):
        raise UserError(f"there is no folder {name}; give a model folder or a hub id such as owner/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        with _patient():
            found = Path(snapshot_download(name, allow_patterns=HUB_FILES, etag_timeout=5))
            if not any((*found.glob("*.safetensors"), *found.glob("0_*/*.safetensors"))):  # old ones of sentence-transformers: 0_Transformer
                found = Path(snapshot_download(name, allow_patterns=[*HUB_FILES, "*pytorch_model*.bin"], etag_timeout=5))
            return found
    except Exception as error:  # whatever the hub's client and the layers under it raise without a network
        if isinstance(error, HfHubHTTPError) and not isinstance(error, LocalEntryNotFoundError):
            said = "the hub does not give a model of that name", "check its spelling"
        else:
            said = "the hub could not be reached to look for a model of that name", "give a folder that is here, or connect to the network"
        raise UserError(f"there is no folder {name}, and {said[0]} ({type(error).__name__}); {said[1]}") from None


@contextmanager
def _patient() -> Iterator[None]:
    """The hub's client waits for ever where no limit is said, and says none where it asks what files a model has."""
    from huggingface_hub import get_session

    def limit(request: Any) -> None:
        said = request.extensions.get("timeout") or {}
        request.extensions["timeout"] = {kind: said.get(kind) or PATIENCE for kind in ("connect", "read", "write", "pool")}

    session = get_session()
    before = session.event_hooks
    session.event_hooks = {**before, "request": [*before["request"], limit]}
    try:
        yield
    finally:
        session.event_hooks = before
