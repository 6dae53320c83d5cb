"""Texts as they are, for scores that read them."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.data.text import encode_all
from fedgen.embeddings.base import TextEmbedding


class TextBytes(TextEmbedding):
    """A text's bytes as features [N, longest], zeros at the end: no network, and every text has them.

    Args:
        longest: bytes of a text that are kept.

    Examples:
        >>> from fedgen.data.text import decode_all
        >>> from fedgen.embeddings.text_bytes import TextBytes
        >>> decode_all(TextBytes(4)(["CCO", "CCCCCC"]))
        ['CCO', 'CCCC']
    """

    def __init__(self, longest: int = 256) -> None:
        super().__init__("bytes", longest, settings={"longest": longest})
        self.longest = longest

    def features(self, texts: Any) -> Tensor:
        tokens = encode_all(texts)[:, : self.longest]
        return F.pad(tokens, (0, self.longest - tokens.shape[1])).to(torch.float32)
