"""The arrays of a file to score: by shape and type, where names do not decide."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedgen.foreign_text import listed, printable
from fedgen.io.archives import Header
from fedgen.io.files import read_npz
from fedgen.statistics.gaussian import is_covariance
from fedgen.statistics.npz import NAMES

Kind = Literal["images", "features", "statistics"]
Shapes = Mapping[str, tuple[int, ...]]
SLACK = 1e-3  # of a matrix's largest entry, for rounding
# a word in the name of an array [N, D] that says what else it is
OTHERS = "zs?|ws?|latents?|codes?|noise|eps|seeds?|ys?|labels?|classes|targets?|(one)?hot|images?|imgs?|pixels?"
OTHER = re.compile(rf"(?i)(?!.*(feat|embed)).*(?<![a-z])({OTHERS})(?![a-z])")
REMEDIES = {
    (4, False): "images are one array of uint8: store floats of [0, 1] as (255 * x).round().astype('uint8')",
    (3, False): "grey images [N, H, W] need a channel: x[..., None]",
    (2, False): "store rows as images by x.reshape(N, H, W, C), as features by x.astype('float32')",
    (2, True): "of several such arrays, and of latents, labels or pixels, features are those stored as 'features'",
}


def choose_arrays(path: Path, headers: Mapping[str, Header]) -> tuple[Kind, tuple[str, ...], str]:
    """The images, else the array 'features', else mean and covariance of any names, else the only floats [N, D].

    With the kind come their names, and a remark if other arrays are left or statistics have names of their own.
    """
    pictures = [key for key, header in headers.items() if len(header.shape) == 4 and header.dtype == np.uint8]
    floats = {key: h.shape for key, h in headers.items() if h.dtype.kind == "f" and 0 not in h.shape}
    rows = [key for key, shape in floats.items() if len(shape) == 2 and not OTHER.match(key)]
    kind: Kind = "features"
    if len(pictures) == 1:
        kind, keys = "images", tuple(pictures)
    elif "features" in rows:
        keys = ("features",)
    elif statistics := NAMES if set(NAMES) <= set(headers) else _find_statistics(path, floats):
        kind, keys = "statistics", statistics
    elif len(rows) == 1:
        _check_features(path, rows[0], floats)
        keys = (rows[0],)
    else:
        held = listed(f"{printable(key)} {header.dtype} {list(header.shape)}" for key, header in headers.items())
        forms = dict.fromkeys((len(h.shape), len(h.shape) == 2 and h.dtype.kind == "f") for h in headers.values())
        raise ValueError(
            f"{path} holds neither features [N, D] (floats, under 'features' or alone), nor images (uint8, four axes),"
            f" nor statistics ([D] beside a covariance [D, D]), but {held or 'nothing'}"
            + "".join(f"; {REMEDIES[form]}" for form in forms if form in REMEDIES)
        )
    unread = [key for key, header in headers.items() if key not in keys and header.shape]
    remark = f"{kind} from {_quoted(keys)}" + (f", not read: {_quoted(unread)}" if unread else "")
    return kind, keys, remark if unread or (kind == "statistics" and keys != NAMES) else ""


def _find_statistics(path: Path, floats: Shapes) -> tuple[str, ...]:
    """Names of the mean [D] and the covariance [D, D] that a file holds; none if it holds none."""
    pairs = [
        (mean, key)
        for key, shape in floats.items()
        if (means := [mean for mean, other in floats.items() if other * 2 == shape and len(shape) == 2])
        and is_covariance(torch.from_numpy(read_npz(path, [key])[key].astype(np.float64)), SLACK)
        for mean in means
    ]
    if len(pairs) > 1:
        found = "; ".join(map(_quoted, pairs))
        raise ValueError(f"{path} stores several means beside covariances: {found}; name one pair 'mu' and 'sigma'")
    return pairs[0] if pairs else ()


def _check_features(path: Path, key: str, floats: Shapes) -> None:
    """Raise ValueError for floats [N, D] that may be something else, unless they are named as features."""
    rows, reason = read_npz(path, [key])[key], ""
    if means := [mean for mean, shape in floats.items() if shape * 2 == floats[key]]:
        reason = f"is a square matrix beside {_quoted(means)}, and no covariance"
    elif len(rows) == rows.shape[1] and np.abs(rows - rows.T).max() <= SLACK * np.abs(rows).max():
        reason = "is a symmetric matrix, as a covariance without its mean"
    elif ((rows[:1000] == 0) | (rows[:1000] == 1)).all() and (rows[:1000].sum(axis=1) == 1).all():
        reason = "has one-hot rows, as labels"
    if reason:
        raise ValueError(f"{path}: '{printable(key)}' {reason}; name features 'features', statistics 'mu' and 'sigma'")


def _quoted(names: Iterable[str]) -> str:
    return listed(f"'{printable(name)}'" for name in names)
