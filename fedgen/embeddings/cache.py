"""Features on disk: computed once per (images, embedding), checked whenever they are read."""

from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from fedgen.data.lazy_examples import CHUNK, LazyInputs
from fedgen.embeddings.base import Embedding
from fedgen.io.files import atomic_write, require_writable
from fedgen.io.hashing import hash_chunks, hash_tensors
from fedgen.io.tensor_files import read_safetensors
from fedgen.own_code import warn
from fedgen.progress import track


class FeatureCache:
    """A folder of features, one safetensors file per images and embedding.

    The key hashes the images' bytes, shape and dtype and the embedding's fingerprint, so other images, weights, resize
    or layer never find each other's features. Entries are written atomically and carry a checksum; a damaged one is
    reported and computed again. Several processes may share a folder.

    Raises:
        PermissionError: if the folder cannot be written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = require_writable(folder)

    def key(self, images: Tensor | LazyInputs | str, embedding: Embedding, computation: str = "") -> str:
        """A hash (32 hex digits) of images, embedding and how it is computed (batch size, device).

        Args:
            images: the images, or a hash over those that are not in memory. Those that lie on disk are known by what
                their data set says of them, else by their bytes, which are read for it.
            embedding: what embeds them.
            computation: whatever else decides the last digits.
        """
        if isinstance(images, LazyInputs):
            if (known := images.identity()) is None:
                chunks = track(images.split(CHUNK), f"hashing {images.reader.name}", len(images), "images", step=len)
                text = f"{embedding.fingerprint()} {computation}"
                return hash_chunks("images", images.dtype, images.shape, chunks, text)
            images = known
        if isinstance(images, str):
            return hash_tensors((), f"{embedding.fingerprint()} {computation} of {images}")
        return hash_tensors([("images", images)], f"{embedding.fingerprint()} {computation}")

    def path(self, key: str) -> Path:
        """The file that holds, or would hold, the features of a key."""
        return self.folder / f"{key}.safetensors"

    def load(self, key: str) -> Tensor | None:
        """The features [N, dim] stored under a key; None if there are none, or, with a warning, if they are damaged."""
        path = self.path(key)
        try:
            tensors, metadata = read_safetensors(path)
        except FileNotFoundError:
            return None
        except ValueError as error:
            _warn_damaged(path, str(error))
            return None
        features = tensors.get("features")
        if (
            features is None
            or metadata.get("key") != key
            or metadata.get("checksum") != hash_tensors([("features", features)])
        ):
            _warn_damaged(path, "its checksum does not match")
            return None
        return features

    def store(self, key: str, features: Tensor) -> None:
        """Writes features under a key. A full disk costs a warning only: the features themselves are at hand."""
        features = features.detach().cpu().contiguous()
        data = save({"features": features}, {"key": key, "checksum": hash_tensors([("features", features)])})
        try:
            with atomic_write(self.path(key)) as file:
                file.write(data)
        except OSError as error:
            warn(f"cannot store features in {self.folder}: {error.strerror}; going on without")


def _warn_damaged(path: Path, reason: str) -> None:
    warn(f"{path} is damaged ({reason}) and is computed again")
