"""ChemNet (Preuer et al. 2018, "Fréchet ChemNet Distance", J. Chem. Inf. Model. 58), the embedding of molecules.

Weights: the package fcd-torch (MIT), `ChemNet_v0.13_pretrained.pt`, which Insilico Medicine converted from the paper's
Keras model. The file is a pickle, read by the kit's restricted reader. Layers, and how a SMILES string becomes numbers,
are written here after the paper and that package, whose features they are.
"""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen import seeds
from fedgen.embeddings.base import TextEmbedding, load_into, read_state, require_file
from fedgen.extras import MissingExtraError, need_rdkit
from fedgen.io.tensor_files import read_torch

FEATURES, LENGTH = 512, 350
SYMBOLS = (*"CNOHF", "Cl", "P", "B", "Br", "S", "I", "Si", *"#()+-12345678=[]@cnosX.")
PLACES = {symbol: place for place, symbol in enumerate(SYMBOLS)}
UNKNOWN, END = PLACES["X"], PLACES["."]
SYMBOL = re.compile(".[ril]|.", re.DOTALL)  # a letter and the one that follows, as in Br, Si and Cl
WEIGHTS = "ChemNet_v0.13_pretrained.pt"
LAYERS = ("conv1", "conv2", "lstm1", "lstm2")
EXTRA = "molecules"


class ChemNetLayers(nn.Module):
    """Two convolutions and two LSTMs that run backwards: the last state [N, 512] of symbols [N, 35, 350]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(len(SYMBOLS), 32, 4, 2, bias=False)
        self.conv2 = nn.Conv1d(32, 32, 4, 2, bias=False)
        self.lstm1 = nn.LSTM(32, 128, batch_first=True)
        self.lstm2 = nn.LSTM(128, FEATURES, batch_first=True)

    def forward(self, symbols: Tensor) -> Tensor:
        inner = F.selu(self.conv1(F.pad(symbols, (1, 1))))
        inner = F.selu(self.conv2(F.pad(inner, (1, 2)))).transpose(1, 2)  # "SAME" of 175: one more zero at the end
        inner = self.lstm1(inner.flip(1))[0]
        return self.lstm2(inner.flip(1))[0][:, -1]


class ChemNet(TextEmbedding):
    """Features [N, 512] of molecules as SMILES strings: the Fréchet distance in them is FCD.

    Equal to `fcd_torch.FCD().get_predictions`: a molecule is written in RDKit's canonical form first, and what comes
    after a dot, a further fragment, is not seen. Needs the extra `molecules` (fcd-torch for the weights, RDKit for
    canonical forms).

    Args:
        weights: a local file: that of fcd-torch, or a state dict of `ChemNetLayers`; the installed package's by
            default.
        canonical: whether to write molecules in canonical form; without it a molecule's features depend on how it is
            written, and nothing is found invalid.

    Raises:
        MissingExtraError: if fcd-torch, or with `canonical` RDKit, is not installed.
    """

    def __init__(self, weights: str | Path | None = None, canonical: bool = True) -> None:
        path = require_file(weights) if weights is not None else _installed_weights()
        with seeds.isolated():
            network = ChemNetLayers()
        load_into(network, read_weights(path), str(path))
        name = "chemnet" if canonical else "chemnet-as-written"
        super().__init__(name, FEATURES, network, settings={"canonical": canonical})
        self._rdkit = need_rdkit("the embedding chemnet") if canonical else None

    def usable(self, texts: Sequence[str]) -> list[bool]:
        """Whether each text is a molecule: always, unless they are written in canonical form."""
        if self._rdkit is None:
            return [bool(text) for text in texts]
        return [bool(text) and self._rdkit.MolFromSmiles(text) is not None for text in texts]

    def features(self, texts: Any) -> Tensor:
        return self.network(to_symbols([self._canonical(text) for text in texts]).to(self.device))

    def _canonical(self, text: str) -> str:
        if self._rdkit is None:
            return text
        molecule = self._rdkit.MolFromSmiles(text)
        if molecule is None or not text:
            raise ValueError(f"{text[:80]!r} is not a molecule in SMILES; leave it out")
        return str(self._rdkit.MolToSmiles(molecule))


def to_symbols(molecules: Sequence[str]) -> Tensor:
    """SMILES strings as float32 [N, 35, 350]: 1/35 where a symbol stands, and the dot that ends the molecule."""
    found = torch.zeros(len(molecules), LENGTH, len(SYMBOLS))
    for row, text in zip(found, molecules):
        symbols = SYMBOL.findall(text.partition(".")[0])[: LENGTH - 1]
        places = [*(PLACES.get(symbol, UNKNOWN) for symbol in symbols), END]
        row[range(len(places)), places] = 1 / len(SYMBOLS)
    return found.transpose(1, 2)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict of `ChemNetLayers`, from one or from fcd-torch's list of layers."""
    saved: Any = read_state(path) if path.suffix == ".safetensors" else read_torch(path)
    if isinstance(saved, list) and len(saved) == len(LAYERS):
        states = [layer[1][0] for layer in saved]
        return {f"{name}.{key}": value for name, state in zip(LAYERS, states) for key, value in state.items()}
    return read_state(path)


def _installed_weights() -> Path:
    found = find_spec("fcd_torch")
    if found is None or found.origin is None:
        raise MissingExtraError(
            f"the embedding chemnet needs the weights of fcd-torch: pip install 'fedgen[{EXTRA}]', or give its file by"
            " weights="
        )
    return require_file(Path(found.origin).parent / WEIGHTS)
