"""Folders of models: a folder here, or a copy of one of the Hugging Face hub."""

import re
from collections.abc import Sequence
from pathlib import Path

from fedgen.extras import need

READ = ["*.json", "*.safetensors"]  # all that is fetched: neither code nor pickles


def find_folder(
    name: str | Path, argument: str = "pretrained", revision: str | None = None, also: Sequence[str] = ()
) -> Path:
    """The folder itself, or where the hub's files are kept after fetching those that are read.

    Args:
        name: a folder, or owner/model on the hub.
        argument: what it was given as, for messages.
        revision: of the hub's model: a branch, tag or commit.
        also: shell patterns of further files that are fetched, of text.

    Raises:
        FileNotFoundError: if there is neither such a folder nor such a model.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder
    if folder.exists() or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", str(name)):
        raise FileNotFoundError(f"{argument}={str(name)!r} is no folder, and no name on the hub (owner/model)")
    hub = need("huggingface_hub", "hub", "a model on the hub")
    options = {} if revision is None else {"revision": revision}
    try:
        return Path(hub.snapshot_download(str(name), allow_patterns=[*READ, *also], **options))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(
            f"{argument}={str(name)!r} is no folder here, and the hub did not give a model of that name: {reason}"
        ) from error
