"""MOSES from files that are written here; its package is not installed for tests."""

import gzip

import pytest
import torch

from fedgen.data import Moses
from fedgen.data.text import FAMILIES, UNSEEN, decode_all

MOLECULES = {
    "CCO": "saturated rings",  # no ring at all
    "C1CC1": "saturated rings",
    "c1ccccc1": "benzene rings",
    "c1ccncc1": "hetero-aromatic rings",
    "C1CC1c1ccccc1": "benzene and saturated",
    "C1CC1c1ccc(C2CC2)cc1": "benzene and saturated, 3 or more",
    "C1CC1c1ccncc1": "hetero-aromatic and saturated",
    "C1CC1c1cc(C2CC2)ncc1": "hetero-aromatic and saturated, 3 or more",
    "c1ccc(-c2ccncc2)cc1": "benzene and hetero-aromatic",
    "c1ccc(-c2ccnc(-c3ccccc3)c2)cc1": "benzene and hetero-aromatic, 3 or more",
    "C1CC1c1ccc(-c2ccncc2)cc1": "all three kinds",
}


@pytest.fixture
def folder(tmp_path):
    pytest.importorskip("rdkit")
    for name, molecules in (("train", MOLECULES), ("test_scaffolds", ["C1CCC1", "c1ccsc1"])):
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress("\n".join(["SMILES", *molecules]).encode()))
    return tmp_path


def test_molecules_have_the_family_of_their_rings(folder):
    found = Moses(root=folder).load("train")
    assert decode_all(found.inputs) == list(MOLECULES)
    assert [FAMILIES[place] for place in found.labels.tolist()] == list(MOLECULES.values())
    assert torch.equal(found.owners, found.labels)
    assert found.owner_names == FAMILIES == found.classes


def test_unseen_scaffolds_have_owners_of_their_own(folder):
    found = Moses(most=4, unseen=2, root=folder).load("train")
    assert found.name == "moses-4/train"
    assert len(found) == 6
    owners = [found.owner_names[place] for place in found.owners.tolist()]
    assert owners[4:] == [f"{UNSEEN}saturated rings", f"{UNSEEN}hetero-aromatic rings"]
    again = Moses(most=4, root=folder).load("train")
    assert decode_all(again.inputs) == decode_all(found.inputs)[:4]
    assert set(decode_all(again.inputs)) < set(MOLECULES)


def test_what_is_no_file_of_moses_is_refused_by_name(folder):
    with pytest.raises(FileNotFoundError, match="molsets"):
        Moses(root=folder).load("test")
    (folder / "test.csv.gz").write_bytes(gzip.compress(b"name\nCCO\n"))
    with pytest.raises(ValueError, match="SMILES"):
        Moses(root=folder).load("test")
    (folder / "test.csv.gz").write_bytes(gzip.compress(b"SMILES\nC(\n"))
    with pytest.raises(ValueError, match="not a molecule"):
        Moses(root=folder).load("test")
    (folder / "test.csv.gz").write_bytes(gzip.compress(b"SMILES\nCCO\n")[:-9])
    with pytest.raises(ValueError, match="damaged"):
        Moses(root=folder).load("test")
    with pytest.raises(ValueError, match="most"):
        Moses(most=0)
