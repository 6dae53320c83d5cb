"""The picture of an evaluation: generated images in a grid, and a row of real ones of the same clients."""

from torch import Tensor

from fedgen.images import tile_titled

SIDE = 32  # pixels that smaller images are enlarged to


def sample_picture(generated: Tensor, real: Tensor | None, heading: str = "generated") -> Tensor:
    """A grid of generated images and one row of real ones, each under its heading.

    Args:
        generated: uint8 [N, C, H, W], C of 1 or 3.
        real: uint8 [M, C, H, W], of which the first row is shown; None where there are none to show.
        heading: over the generated ones.

    Returns:
        uint8 [C, H', W'].
    """
    columns = int(len(generated) ** 0.5 + 0.999999)
    parts = [(heading, generated)]
    if real is not None and len(real):
        parts.append(("real, of the same clients in turn", real[:columns]))
    return tile_titled(parts, columns, SIDE)
