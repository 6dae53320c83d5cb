"""MOSES (Polykovskiy et al. 2020, arXiv 1811.12823): drug-like molecules of ZINC as SMILES strings.

Its three files come with the Python package molsets (MIT): 1,584,663 molecules to train on, 176,074 to test on, and
176,225 whose scaffolds, the rings of a molecule and what joins them, are in neither of the others.
"""

from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.text import encode_all
from fedgen.extras import need_rdkit
from fedgen.io.regular_files import read_gzip
from fedgen.progress import track
from fedgen.seeds import subset

FILES = {"train": "train.csv.gz", "test": "test.csv.gz", "unseen": "test_scaffolds.csv.gz"}
REMEDY = (
    "install it with `pip install --no-deps molsets` (the package asks for libraries that the data do not need), or"
    " give the folder of its *.csv.gz as root="
)
FAMILIES = (
    *("saturated rings", "benzene rings", "hetero-aromatic rings"),
    *("benzene and saturated", "benzene and saturated, 3 or more"),
    *("hetero-aromatic and saturated", "hetero-aromatic and saturated, 3 or more"),
    *("benzene and hetero-aromatic", "benzene and hetero-aromatic, 3 or more"),
    "all three kinds",
)
"""Scaffolds by the kinds of their rings (benzene: aromatic, of carbon alone), and where there are two kinds by whether
there are more than two rings."""
UNSEEN = "unseen: "


class Moses(DataSet):
    """Molecules of MOSES as SMILES: tokens int64 [N, T], bytes with zeros at the end; owners are ten scaffold families.

    A molecule's family, which is its label too, says which kinds of rings its scaffold has: benzene rings,
    hetero-aromatic ones and saturated ones (those without any ring are among the last). Families have from 3 to 17 % of
    the molecules. `IID` deals the same molecules at random. RDKit finds the rings: some 5,000 molecules a second.

    Args:
        most: molecules of a split, drawn at random but always the same, in the order of the file; None for all.
        unseen: molecules of the scaffold test to have beside those of "train", their owners' names beginning with
            "unseen: "; `ThreeWaySplit(unparticipating="unseen: *")` keeps those owners from training.
        root: a folder with the files; that of the installed package by default.

    Raises:
        ValueError: for a number out of range.
    """

    def __init__(self, most: int | None = None, unseen: int = 0, root: str | Path | None = None) -> None:
        for name, value, least in (("most", most, 1), ("unseen", unseen, 0)):
            if value is not None and value < least:
                raise ValueError(f"{name}={value}: a number of molecules, at least {least}")
        self.most, self.unseen, self.root = most, unseen, None if root is None else Path(root)
        self.name = "moses" if most is None else f"moses-{most}"

    def read(self, split: Split) -> Examples:
        """The molecules of a split; ValueError for one that RDKit cannot read."""
        molecules = read_molecules(self._file(split), self.most)
        further = read_molecules(self._file("unseen"), self.unseen) if split == "train" and self.unseen else []
        labels = families_of([*molecules, *further])
        owners = labels + len(FAMILIES) * (torch.arange(len(labels)) >= len(molecules))
        names = (*FAMILIES, *(f"{UNSEEN}{family}" for family in FAMILIES)) if further else FAMILIES
        inputs = encode_all([*molecules, *further])
        return Examples(inputs, labels, f"{self.name}/{split}", FAMILIES, owners, names)

    def _file(self, part: str) -> Path:
        path = (self.root or _installed()) / FILES[part]
        if not path.is_file():
            raise FileNotFoundError(f"no molecules of MOSES at {path}; {REMEDY}")
        return path


def _installed() -> Path:
    """The folder of the installed package's data; importing it would ask for libraries that nobody needs."""
    package = find_spec("moses")
    folders = package.submodule_search_locations if package is not None else None
    if not folders:
        raise FileNotFoundError(f"MOSES' molecules come with the package molsets: {REMEDY}")
    return Path(folders[0]) / "dataset" / "data"


def read_molecules(path: Path, most: int | None = None) -> list[str]:
    """The SMILES of a file of MOSES, the first column after a header; at most so many, the same at every call."""
    lines = read_gzip(path).decode("ascii", errors="replace").splitlines()
    if not lines or lines[0].split(",")[0] != "SMILES":
        raise ValueError(f"{path} is no file of MOSES, whose first column is SMILES; {REMEDY}")
    found = [line.split(",")[0] for line in lines[1:]]
    if most is None or most >= len(found):
        return found
    return [found[place] for place in subset(len(found), most, 0, "molecules", path.name).tolist()]


def families_of(molecules: Sequence[str]) -> torch.Tensor:
    """The places int64 [N] in `FAMILIES` of molecules in SMILES; ValueError names one that RDKit cannot read."""
    chem = need_rdkit("the data set Moses")
    shown = track(molecules, "scaffold families", len(molecules), "molecules")
    return torch.tensor([FAMILIES.index(_family(text, chem)) for text in shown], dtype=torch.int64)


def _family(text: str, chem: Any) -> str:
    molecule = chem.MolFromSmiles(text)
    if molecule is None:
        raise ValueError(f"{text[:80]!r} is no molecule in SMILES; {REMEDY}")
    kinds: Counter[str] = Counter()
    for ring in molecule.GetRingInfo().AtomRings():
        atoms = [molecule.GetAtomWithIdx(place) for place in ring]
        carbon = all(atom.GetAtomicNum() == 6 for atom in atoms)
        aromatic = all(atom.GetIsAromatic() for atom in atoms)
        kinds["saturated" if not aromatic else "benzene" if carbon else "hetero-aromatic"] += 1
    if len(kinds) == 3:
        return FAMILIES[-1]
    if len(kinds) < 2:
        return f"{next(iter(kinds), 'saturated')} rings"
    names = " and ".join(kind for kind in ("benzene", "hetero-aromatic", "saturated") if kind in kinds)
    return names + (", 3 or more" if kinds.total() > 2 else "")
