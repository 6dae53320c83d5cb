"""Images in folders: one folder for each class, or all in one."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedgen.data.dataset import DataSet, Split
from fedgen.data.examples import Examples
from fedgen.data.image_files import SUFFIXES, check_form, images_below, read_image
from fedgen.progress import track


class ImageFolder(DataSet):
    """Images below a folder, uint8 [N, C, H, W], in the order of their paths.

    If the folder has subfolders, each is a class with all images below it; otherwise all images lie in the folder
    itself and have no labels.

    Args:
        root: the folder of the train split.
        size: side to which images are resized (bicubic, antialiased; the shorter side first, then the centre is cut
            out); by default all must have one size. Then the name ends in it, e.g. "pets-64".
        channels: 3 for RGB, 1 for grey; images are converted.
        name: what stored scores call the data; the folder's name by default.
        test_root: the folder of the test split, with the same classes; without it there is no test split.
    """

    def __init__(
        self,
        root: str | Path,
        size: int | None = None,
        channels: int = 3,
        name: str | None = None,
        test_root: str | Path | None = None,
    ) -> None:
        check_form(channels, size)
        self.roots = {"train": Path(root)} | ({"test": Path(test_root)} if test_root else {})
        self.splits = tuple(self.roots)
        self.size = size
        self.channels = channels
        self.name = (name or Path(root).absolute().name) + (f"-{size}" if size else "")

    def read(self, split: Split) -> Examples:
        """The images of a split.

        Raises:
            FileNotFoundError: if the folder is missing or has no images.
            ValueError: if files cannot be read (all are listed), or sizes differ and none is asked for.
        """
        files, labels, classes = list_images(self.roots[split])
        if split == "test" and classes != (expected := list_images(self.roots["train"])[2]):
            raise ValueError(f"{self.roots[split]} has the classes {classes}, but the train split has {expected}")
        images = read_images(files, f"{self.name}/{split}", self.channels, self.size)
        return Examples(images, torch.tensor(labels), f"{self.name}/{split}", classes)


def read_images(files: Sequence[Path], name: str, channels: int, size: int | None) -> Tensor:
    """The images of these files, uint8 [N, channels, H, W]; see `ImageFolder` for channels and size.

    Raises:
        ValueError: if files cannot be read (all are listed), or sizes differ and none is asked for.
    """
    images: list[Tensor] = []
    broken: list[str] = []
    for file in track(files, f"reading {name}", len(files), "images"):
        try:
            images.append(read_image(file, channels, size))
        except ValueError as error:
            broken.append(str(error))
    if broken:
        listing = "\n  ".join(broken)
        raise ValueError(f"{len(broken)} of {len(files)} images of {name} cannot be read:\n  {listing}")
    shapes = {tuple(image.shape[1:]): file for image, file in zip(images, files)}
    if len(shapes) > 1:
        found = ", ".join(f"{h} x {w} ({file})" for (h, w), file in list(shapes.items())[:5])
        raise ValueError(f"the images of {name} have {len(shapes)} sizes: {found}; give size= to resize them")
    return torch.stack(images)


def list_images(root: Path) -> tuple[list[Path], list[int], tuple[str, ...]]:
    """Paths, labels and class names of the images below a folder; hidden files and folders are left out.

    Raises:
        FileNotFoundError: if there is no such folder, or no image in it or in one of its class folders.
        ValueError: if images lie beside class folders.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root.absolute()}; give the folder that holds the images")
    classes = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    flat = images_below(root, recursive=False)
    if classes and flat:
        raise ValueError(f"{root} holds both images (such as {flat[0].name}) and folders; move them into class folders")
    groups = [images_below(root / name, recursive=True) for name in classes] or [flat]
    for group, name in zip(groups, classes or [""]):
        if not group:
            raise FileNotFoundError(f"{(root / name).absolute()} has no images ({', '.join(sorted(SUFFIXES))})")
    labels = [label for label, group in enumerate(groups) for _ in group]
    return [file for group in groups for file in group], labels, tuple(classes)
