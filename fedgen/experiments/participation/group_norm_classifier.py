"""A classifier as an ordinary LightningModule: the kind of model that studies of federated learning train."""

from itertools import pairwise

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

GROUPS = 4  # of channels, normalised together: nothing depends on a batch, so there are no statistics to average


class GroupNormClassifier(LightningModule):
    """Stages of 3x3 convolution, GroupNorm, ReLU and 2x2 pooling, then a linear layer; cross-entropy by plain SGD.

    Args:
        channels: of the images.
        image_size: pixels a side.
        num_classes: of the labels.
        widths: channels of each stage, multiples of four.
        lr: learning rate of the clients.
        weight_decay: of the clients' SGD.

    Raises:
        ValueError: for sizes that leave nothing to classify, or widths that are no multiples of four.
    """

    def __init__(
        self,
        channels: int = 1,
        image_size: int = 16,
        num_classes: int = 10,
        widths: tuple[int, ...] = (16, 32),
        lr: float = 0.1,
        weight_decay: float = 1e-4,
    ) -> None:
        super().__init__()
        side = image_size // 2 ** len(widths)
        if side < 1 or num_classes < 2 or any(width < 1 or width % GROUPS for width in widths):
            raise ValueError(
                f"image_size={image_size}, widths={widths}, num_classes={num_classes}: every stage halves the image,"
                f" widths are multiples of {GROUPS}, and there are at least 2 classes"
            )
        self.save_hyperparameters()
        self.lr, self.weight_decay, self.num_classes = lr, weight_decay, num_classes
        stages = [
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(GROUPS, b), nn.ReLU(), nn.MaxPool2d(2))
            for a, b in pairwise((channels, *widths))
        ]
        self.network = nn.Sequential(
            *stages, nn.Flatten(), nn.Linear((widths or (channels,))[-1] * side**2, num_classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes] of images float [N, C, H, W] in [-1, 1]."""
        logits: Tensor = self.network(images)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.lr, weight_decay=self.weight_decay)

    @torch.no_grad()
    def example_losses(self, images: Tensor, labels: Tensor | None, seed: int = 0) -> Tensor:
        """Return 1 for each image that is classified wrongly, else 0, float [N]: the mean is the error rate."""
        if labels is None:
            raise ValueError("a classifier's errors need the images' labels, and these data have none")
        was = self.training
        self.eval()
        found = torch.cat([self(part.to(self.device)).argmax(1) for part in images.split(1000)])
        self.train(was)
        return (found != labels.to(self.device)).float()
