"""MNIST (LeCun, Bottou, Bengio and Haffner 1998): 60,000 train and 10,000 test digits, 28 x 28 grey pixels."""

from fedgen.data.formats.idx import IdxDataSet


class MNIST(IdxDataSet):
    """MNIST, uint8 [N, 1, 28, 28], from its idx files, plain or gzipped.

    Looked for in `root` and in torchvision's place below it, MNIST/raw; then downloaded there from torchvision's
    mirrors, where the network allows. Without a network, `MNIST5k` has 5,000 of the train images.

    Args:
        root: folder of data sets.
        pad_to: side of the images after padding with black, e.g. 32; then the name is "mnist-32".
    """

    base_name = "mnist"
    classes = tuple("0123456789")
    torchvision_name = "MNIST"
    remedy = "put the four *-ubyte.gz files of {url} into {folder}, or use MNIST5k, which needs no files"
