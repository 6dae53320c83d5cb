"""Camelyon17 of WILDS (Bandi et al. 2018; Koh et al. 2021, arXiv 2012.07421): 455,954 patches of five hospitals."""

from pathlib import Path

from fedgen.data.examples import Split
from fedgen.data.formats.image_folder import Listing
from fedgen.data.sets.owned.hospital_images import HospitalImages, listing, number_in, table_rows

HOSPITALS = 5
CODES = {"train": 0, "test": 1}  # in the table's column "split"
MOST = 10**9  # of coordinates and numbers of nodes
CLASSES = ("normal", "tumor")
COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")


class Camelyon17(HospitalImages):
    """Patches of lymph node sections, uint8 [N, 3, size, size], with the hospitals as owners, for `Natural`.

    Looked for as WILDS unpacks it: metadata.csv and patches in `root`/camelyon17_v1.0 or in `root`; patches are of 96 x
    96 pixels. Labels say whether the centre has tumor tissue. Train and test are the table's two parts, nine and one
    tenth of all hospitals' patches, drawn patch by patch. (WILDS itself tests on the hospitals 1 and 2, whose patches
    it leaves out of training: "hospital 1" and "hospital 2" here.) In memory at 64 pixels the train split takes 5 GB.
    """

    title, folder, table = "camelyon17", "camelyon17_v1.0", "metadata.csv"
    remedy = (
        "it is free (CC0): pip install wilds, run python -c \"from wilds import get_dataset; get_dataset('camelyon17', "
        "download=True, root_dir='data')\" (10 GB), and give the folder camelyon17_v1.0 that it makes"
    )

    def list_split(self, place: Path, split: Split) -> Listing:
        path = place / self.table
        files, labels, hospitals = [], [], []
        for line, row in table_rows(path, COLUMNS, COLUMNS[:4]):
            if number_in(path, line, row, "split", 4) != CODES[split]:
                continue
            node, x, y = (number_in(path, line, row, column, MOST) for column in ("node", "x_coord", "y_coord"))
            patient = f"{number_in(path, line, row, 'patient', 1000):03d}"  # three digits in names of files
            section = f"patient_{patient}_node_{node}"
            files.append(place / "patches" / section / f"patch_{section}_x_{x}_y_{y}.png")
            labels.append(number_in(path, line, row, "tumor", len(CLASSES)))
            hospitals.append(number_in(path, line, row, "center", HOSPITALS))
        if not files:
            raise ValueError(f"{path} lists no patch of the {split} split (column split {CODES[split]}); get it again")
        return listing(files, labels, CLASSES, hospitals, lambda number: f"hospital {number}")
