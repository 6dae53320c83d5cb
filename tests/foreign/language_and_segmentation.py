"""Language models and a segmentation net.

From packages by name, or written anew after the sources named in each case, with their hooks and names of state.
"""

import inspect
import math
from typing import Any

import lightning as L
import segmentation_models_pytorch as smp
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

from tests.foreign.cases import Case, tokens
from tests.foreign.optimisation import Batch


class GPT2(L.LightningModule):
    """A small GPT-2 of transformers: tied embeddings, dropout, weight decay of matrices alone, and a linear schedule
    with warm-up over `estimated_stepping_batches`, as Lightning's text example has it."""

    def __init__(self) -> None:
        super().__init__()
        config = GPT2Config(
            vocab_size=17, n_positions=10, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
        )
        self.model = GPT2LMHeadModel(config)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        ids = batch[0].long()
        return self.model(input_ids=ids, labels=ids).loss

    def configure_optimizers(self) -> Any:
        decayed = [p for p in self.parameters() if p.dim() >= 2]
        rest = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        schedule = get_linear_schedule_with_warmup(
            optimizer, num_warmup_steps=2, num_training_steps=int(self.trainer.estimated_stepping_batches)
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step", "frequency": 1}]


class CausalSelfAttention(nn.Module):
    """One head whose mask is a buffer `bias`, as nanoGPT's slow attention has it."""

    def __init__(self, n_embd: int, block_size: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, block_size, block_size))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.c_attn(x).chunk(3, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, : x.size(1), : x.size(1)] == 0, float("-inf"))
        return self.c_proj(self.attn_dropout(F.softmax(att, dim=-1)) @ v)


class NanoGPT(L.LightningModule):
    """nanoGPT's loop: tied weights, clipped gradients, AdamW's groups and a rate that is a function of `iter_num`."""

    def __init__(self, vocab_size: int = 17, n_embd: int = 8, block_size: int = 9) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.iter_num, self.learning_rate, self.warmup_iters, self.lr_decay_iters = 0, 0.1, 3, 8
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.attn, self.ln_f = CausalSelfAttention(n_embd, block_size), nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def get_lr(self, it: int) -> float:
        if it < self.warmup_iters:
            return self.learning_rate * (it + 1) / (self.warmup_iters + 1)
        if it > self.lr_decay_iters:
            return 0.1 * self.learning_rate
        ratio = (it - self.warmup_iters) / (self.lr_decay_iters - self.warmup_iters)
        return self.learning_rate * (0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * ratio)))

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        optimizer, ids = self.optimizers(), batch[0].long()
        for group in optimizer.param_groups:
            group["lr"] = self.get_lr(self.iter_num)
        x = self.wte(ids[:, :-1]) + self.wpe(torch.arange(ids.size(1) - 1))
        logits = self.lm_head(self.ln_f(x + self.attn(x)))
        self.manual_backward(F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.iter_num += 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        extra = {"fused": False} if "fused" in inspect.signature(torch.optim.SGD).parameters else {}
        decayed = [p for p in self.parameters() if p.dim() >= 2]
        rest = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.SGD(groups, lr=self.learning_rate, momentum=0.9, **extra)


class Segmentation(L.LightningModule):
    """A U-Net of segmentation-models-pytorch with the module of its example: outputs of steps are gathered in
    `training_step_outputs`, which `on_train_epoch_end` reads and clears."""

    def __init__(self) -> None:
        super().__init__()
        self.model = smp.Unet(
            "tu-resnet10t", encoder_depth=2, encoder_weights=None, decoder_channels=(8, 4), in_channels=1, classes=1
        )
        self.register_buffer("std", torch.full((1, 1, 1, 1), 0.5))
        self.register_buffer("mean", torch.full((1, 1, 1, 1), 0.1))
        self.loss_fn = smp.losses.DiceLoss(smp.losses.BINARY_MODE, from_logits=True)
        self.training_step_outputs: list[dict[str, Tensor]] = []

    def shared_step(self, image: Tensor, mask: Tensor) -> dict[str, Tensor]:
        logits_mask = self.model((image - self.mean) / self.std)
        pred_mask = (logits_mask.sigmoid() > 0.5).float()
        tp, fp, fn, tn = smp.metrics.get_stats(pred_mask.long(), mask.long(), mode="binary")
        return {"loss": self.loss_fn(logits_mask, mask), "tp": tp, "fp": fp, "fn": fn, "tn": tn}

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        info = self.shared_step(batch[0], (batch[0] > 0).float())
        self.training_step_outputs.append({name: value.detach() for name, value in info.items()})
        return info["loss"]

    @staticmethod
    def dataset_iou(outputs: list[dict[str, Tensor]]) -> Tensor:
        stats = (torch.cat([x[name] for x in outputs]) for name in ("tp", "fp", "fn", "tn"))
        return smp.metrics.iou_score(*stats, reduction="micro")

    def on_train_epoch_end(self) -> None:
        self.log("train_dataset_iou", self.dataset_iou(self.training_step_outputs), prog_bar=True)
        self.training_step_outputs.clear()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=int(self.trainer.estimated_stepping_batches), eta_min=1e-5
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step", "frequency": 1}}


CASES = [
    Case("GPT-2", "transformers", "tied weights, schedule by steps", GPT2, tokens),
    Case(
        "nanoGPT",
        "karpathy/nanoGPT, train.py and model.py",
        "tied weights, Python counter",
        NanoGPT,
        tokens,
        moves=("iter_num",),
        python=("iter_num",),
    ),
    Case(
        "U-Net",
        "segmentation-models-pytorch, examples/binary_segmentation_intro.ipynb",
        "BatchNorm, outputs gathered in a list, schedule by steps",
        Segmentation,
        moves=("model.encoder.model.bn1.running_mean",),
        interval=3,
    ),
]
