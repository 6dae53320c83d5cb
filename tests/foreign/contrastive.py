"""Self-supervised modules: momentum encoders, queues, memory banks, centres and prototypes.

Lightly's parts are taken from the package, put together as its documentation does; MoCo is written anew after the
original code, with its hooks and names of state.
"""

import copy
from typing import Any, ClassVar

import lightning as L
import torch
from lightly.loss import DINOLoss, NegativeCosineSimilarity, NTXentLoss, SwaVLoss
from lightly.models.modules import (
    BYOLPredictionHead,
    BYOLProjectionHead,
    DINOProjectionHead,
    MoCoProjectionHead,
    SimSiamPredictionHead,
    SimSiamProjectionHead,
    SwaVProjectionHead,
    SwaVPrototypes,
)
from lightly.models.utils import deactivate_requires_grad, update_momentum
from lightly.utils.scheduler import CosineWarmupScheduler, cosine_schedule
from torch import Tensor, nn
from torch.nn import functional as F

from tests.foreign.cases import Case
from tests.foreign.optimisation import Batch


def backbone() -> nn.Module:
    """Features [N, 64] of 8 x 8 images, with BatchNorm (and so without the bias that it would take off again)."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())


def two_views(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two noisy copies of a batch, the second mirrored."""
    return x + 0.1 * torch.randn_like(x), x.flip(-1) + 0.1 * torch.randn_like(x)


class BYOL(L.LightningModule):
    """Grill et al. 2020 as lightly's documentation puts it together."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.projection_head = backbone(), BYOLProjectionHead(64, 8, 8)
        self.prediction_head = BYOLPredictionHead(8, 8, 8)
        self.backbone_momentum = copy.deepcopy(self.backbone)
        self.projection_head_momentum = copy.deepcopy(self.projection_head)
        deactivate_requires_grad(self.backbone_momentum)
        deactivate_requires_grad(self.projection_head_momentum)
        self.criterion = NegativeCosineSimilarity()

    def forward(self, x: Tensor) -> Tensor:
        return self.prediction_head(self.projection_head(self.backbone(x)))

    def forward_momentum(self, x: Tensor) -> Tensor:
        return self.projection_head_momentum(self.backbone_momentum(x)).detach()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        momentum = cosine_schedule(self.current_epoch, 10, 0.9, 1)
        update_momentum(self.backbone, self.backbone_momentum, m=momentum)
        update_momentum(self.projection_head, self.projection_head_momentum, m=momentum)
        x0, x1 = two_views(batch[0])
        p0, p1, z0, z1 = self(x0), self(x1), self.forward_momentum(x0), self.forward_momentum(x1)
        return 0.5 * (self.criterion(p0, z1) + self.criterion(p1, z0))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.06)


class BYOLWithWarmUp(BYOL):
    """As lightly's benchmark has it: rate and momentum by steps of all that are planned, the rate after a warm-up."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        planned = int(self.trainer.estimated_stepping_batches)
        momentum = cosine_schedule(self.trainer.global_step, planned, 0.9, 1)
        update_momentum(self.backbone, self.backbone_momentum, m=momentum)
        update_momentum(self.projection_head, self.projection_head_momentum, m=momentum)
        x0, x1 = two_views(batch[0])
        p0, p1, z0, z1 = self(x0), self(x1), self.forward_momentum(x0), self.forward_momentum(x1)
        return 0.5 * (self.criterion(p0, z1) + self.criterion(p1, z0))

    def configure_optimizers(self) -> Any:
        optimizer, planned = super().configure_optimizers(), self.trainer.estimated_stepping_batches
        assert self.trainer.max_epochs
        warmup = int(planned / self.trainer.max_epochs)
        schedule = CosineWarmupScheduler(optimizer=optimizer, warmup_epochs=warmup, max_epochs=int(planned))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class MoCo(L.LightningModule):
    """He et al. 2020: `encoder_q`, `encoder_k` that follows it, and a `queue` of keys with `queue_ptr`."""

    def __init__(self, dim: int = 4, K: int = 24, m: float = 0.9, T: float = 0.2) -> None:
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, dim))
        self.encoder_k = copy.deepcopy(self.encoder_q)
        for param_k in self.encoder_k.parameters():
            param_k.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self) -> None:
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            param_k.data = param_k.data * self.m + param_q.data * (1.0 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys: Tensor) -> None:
        ptr = int(self.queue_ptr)
        assert self.K % keys.shape[0] == 0
        self.queue[:, ptr : ptr + keys.shape[0]] = keys.T
        self.queue_ptr[0] = (ptr + keys.shape[0]) % self.K

    def forward(self, im_q: Tensor, im_k: Tensor) -> tuple[Tensor, Tensor]:
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            k = F.normalize(self.encoder_k(im_k), dim=1)
        l_pos = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        self._dequeue_and_enqueue(k)
        return torch.cat([l_pos, l_neg], dim=1) / self.T, torch.zeros(len(q), dtype=torch.long)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return F.cross_entropy(*self(*two_views(batch[0])))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)


class DeclaringMoCo(MoCo):
    """The same, whose class says what becomes of its queue."""

    federated_rules: ClassVar = {"queue*": "personal"}


class LightlyMoCo(L.LightningModule):
    """MoCo v2 as lightly puts it together: the loss holds the queue in buffers that are not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.projection_head = backbone(), MoCoProjectionHead(64, 8, 4)
        self.backbone_momentum = copy.deepcopy(self.backbone)
        self.projection_head_momentum = copy.deepcopy(self.projection_head)
        deactivate_requires_grad(self.backbone_momentum)
        deactivate_requires_grad(self.projection_head_momentum)
        self.criterion = NTXentLoss(memory_bank_size=(24, 4), temperature=0.2)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        momentum = cosine_schedule(self.current_epoch, 10, 0.9, 1)
        update_momentum(self.backbone, self.backbone_momentum, m=momentum)
        update_momentum(self.projection_head, self.projection_head_momentum, m=momentum)
        x_query, x_key = two_views(batch[0])
        query = self.projection_head(self.backbone(x_query).flatten(1))
        with torch.no_grad():
            key = self.projection_head_momentum(self.backbone_momentum(x_key).flatten(1))
        return self.criterion(query, key)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.06)


class DINO(L.LightningModule):
    """Caron et al. 2021 as lightly puts it together: a teacher, and a loss that centres the teacher's outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.student_backbone, self.teacher_backbone = backbone(), backbone()
        self.student_head = DINOProjectionHead(64, 8, 4, 8, freeze_last_layer=1)
        self.teacher_head = DINOProjectionHead(64, 8, 4, 8)
        self.teacher_backbone.load_state_dict(self.student_backbone.state_dict())
        self.teacher_head.load_state_dict(self.student_head.state_dict())
        deactivate_requires_grad(self.teacher_backbone)
        deactivate_requires_grad(self.teacher_head)
        self.criterion = DINOLoss(output_dim=8, warmup_teacher_temp_epochs=2)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        momentum = cosine_schedule(self.current_epoch, 10, 0.9, 1)
        update_momentum(self.student_backbone, self.teacher_backbone, m=momentum)
        update_momentum(self.student_head, self.teacher_head, m=momentum)
        views = [*two_views(batch[0]), batch[0].roll(1, -1)]
        with torch.no_grad():
            teacher_out = [self.teacher_head(self.teacher_backbone(view).flatten(1)) for view in views[:2]]
        student_out = [self.student_head(self.student_backbone(view).flatten(1)) for view in views]
        return self.criterion(teacher_out, student_out, epoch=self.current_epoch)

    def on_after_backward(self) -> None:
        self.student_head.cancel_last_layer_gradients(current_epoch=self.current_epoch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0005)


class SimSiam(L.LightningModule):
    """Chen and He 2021 as lightly puts it together."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = backbone()
        self.projection_head, self.prediction_head = SimSiamProjectionHead(64, 8, 8), SimSiamPredictionHead(8, 4, 8)
        self.criterion = NegativeCosineSimilarity()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.projection_head(self.backbone(x).flatten(1))
        return z.detach(), self.prediction_head(z)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        (z0, p0), (z1, p1) = (self(view) for view in two_views(batch[0]))
        return 0.5 * (self.criterion(z0, p1) + self.criterion(z1, p0))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class SwaV(L.LightningModule):
    """Caron et al. 2020 as lightly puts it together: prototypes, normalised before each step, frozen at first."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.projection_head = backbone(), SwaVProjectionHead(64, 8, 4)
        self.prototypes = SwaVPrototypes(4, n_prototypes=6, n_steps_frozen_prototypes=2)
        self.criterion = SwaVLoss()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.prototypes.normalize()
        views = [*two_views(batch[0]), batch[0].roll(1, -1)]
        features = [F.normalize(self.projection_head(self.backbone(v).flatten(1)), dim=1, p=2) for v in views]
        scores = [self.prototypes(f, self.current_epoch) for f in features]
        return self.criterion(scores[:2], scores[2:])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.001)


CASES = [
    Case(
        "BYOL",
        "lightly",
        "momentum encoder, BatchNorm",
        BYOL,
        moves=("backbone_momentum.0.weight", "backbone_momentum.1.running_var"),
    ),
    Case(
        "BYOL with warm-up",
        "lightly, benchmarks/imagenet/resnet50/byol.py",
        "momentum encoder, BatchNorm, schedule and momentum by steps",
        BYOLWithWarmUp,
        rounds=3,
        moves=("backbone_momentum.0.weight",),
        tolerance=1e-4,  # BatchNorm over 4 examples enlarges rounding
    ),
    Case(
        "MoCo",
        "facebookresearch/moco, moco/builder.py",
        "momentum encoder, queue and pointer kept by clients",
        MoCo,
        rules={"queue*": "personal"},
        moves=("encoder_k.1.weight",),
    ),
    Case(
        "MoCo, declared by its class",
        "facebookresearch/moco, moco/builder.py",
        "as above, by `federated_rules`",
        DeclaringMoCo,
        moves=("encoder_k.1.weight",),
    ),
    Case(
        "MoCo, nothing declared",
        "facebookresearch/moco, moco/builder.py",
        "momentum encoder, queue averaged, a pointer that falls",
        MoCo,
        moves=("encoder_k.1.weight", "queue"),
        warns=("(?s).*queue_ptr",),
    ),
    Case(
        "MoCo v2, bank kept by clients",
        "lightly, NTXentLoss with a memory bank",
        "momentum encoder, buffers that are not saved",
        LightlyMoCo,
        rules={"criterion.memory_bank.bank*": "personal"},
        moves=("backbone_momentum.0.weight",),
    ),
    Case(
        "MoCo v2, nothing declared",
        "lightly, NTXentLoss with a memory bank",
        "momentum encoder, buffers that are not saved, reset",
        LightlyMoCo,
        moves=("backbone_momentum.0.weight",),
        python=("criterion.memory_bank.bank*",),
    ),
    Case(
        "DINO",
        "lightly",
        "teacher, centre, weight norm",
        DINO,
        moves=("teacher_head.last_layer.weight_v", "criterion.center"),
        rounds=3,
        warns=(".torch.nn.utils.weight_norm. is deprecated",),
    ),
    Case("SimSiam", "lightly", "BatchNorm", SimSiam, moves=("backbone.1.running_mean",)),
    Case("SwAV", "lightly", "prototypes changed outside the optimizer", SwaV, moves=("prototypes.heads.0.weight",)),
]
