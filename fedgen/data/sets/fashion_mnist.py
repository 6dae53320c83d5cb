"""Fashion-MNIST (Xiao et al. 2017, arXiv 1708.07747): 60,000 train and 10,000 test images, 28 x 28 grey pixels."""

from pathlib import Path

from fedgen.data.formats.idx import IdxDataSet


class FashionMNIST(IdxDataSet):
    """Fashion-MNIST, uint8 [N, 1, 28, 28], from its idx files, plain or gzipped.

    Looked for in `root`, in torchvision's place below it, and where Debian's package dataset-fashion-mnist puts it;
    then downloaded to torchvision's place, where the network allows.

    Args:
        root: folder of data sets.
        pad_to: side of the images after padding with black, e.g. 32; then the name is "fashion_mnist-32".
    """

    base_name = "fashion_mnist"
    classes = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
    torchvision_name = "FashionMNIST"
    more_folders = (Path("/usr/share/datasets/fashion-mnist"),)
    remedy = "apt-get install dataset-fashion-mnist, or put the four *-ubyte.gz files of {url} into {folder}"
