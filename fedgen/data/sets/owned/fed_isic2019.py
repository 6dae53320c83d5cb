"""Fed-ISIC2019 of FLamby (Ogier du Terrail et al. 2022, arXiv 2210.04620): 23,247 skin lesions of six centres."""

import re
from pathlib import Path

from fedgen.data.examples import Split
from fedgen.data.formats.image_folder import Listing
from fedgen.data.sets.owned.hospital_images import HospitalImages, listing, number_in, table_rows

CENTRES = ("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias")
"""in FLamby's order: centre 0 to 5"""
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
COLUMNS = ("image", "target", "center", "fold")
IMAGES = "ISIC_2019_Training_Input_preprocessed"
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


class FedISIC2019(HospitalImages):
    """Skin lesions, uint8 [N, 3, size, size], with the centres as owners, for `Natural`: 18,597 train, 4,650 test.

    Looked for in `root`/fed_isic2019 or in `root`: FLamby's table train_test_split and its folder
    ISIC_2019_Training_Input_preprocessed, whose images have a shorter side of 224 pixels. Labels are ISIC's eight
    diagnoses. Both splits have all centres.
    """

    title, folder, table = "fed-isic2019", "fed_isic2019", "train_test_split"
    remedy = (
        "it is free for research (CC BY-NC 4.0): run download_isic.py and resize_images.py of FLamby "
        "(https://github.com/owkin/FLamby, flamby/datasets/fed_isic2019/dataset_creation_scripts), and put the folder "
        f"{IMAGES} that they make and their file train_test_split into one folder"
    )

    def list_split(self, place: Path, split: Split) -> Listing:
        path = place / self.table
        files, labels, centres = [], [], []
        for line, row in table_rows(path, COLUMNS, COLUMNS[:1]):
            if row["fold"] not in ("train", "test"):
                raise ValueError(f"{path}, line {line}: fold is {row['fold'][:40]!r}, neither train nor test")
            if row["fold"] != split:
                continue
            if not _NAME.fullmatch(row["image"]):
                raise ValueError(f"{path}, line {line}: {row['image'][:40]!r} is no name of an image")
            files.append(place / IMAGES / f"{row['image']}.jpg")
            labels.append(number_in(path, line, row, "target", len(CLASSES)))
            centres.append(number_in(path, line, row, "center", len(CENTRES)))
        if not files:
            raise ValueError(f"{path} lists no image of the {split} split; get it again")
        return listing(files, labels, CLASSES, centres, lambda number: CENTRES[number])
