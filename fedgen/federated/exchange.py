"""Which of a module's tensors travel between server and clients, and the server's copy of them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedgen.federated.forms import Forms


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no tensor holds NaN or infinity; one pass over the memory in the common case."""
    floats = [t for t in tensors if (t.is_floating_point() or t.is_complex()) and t.numel()]
    if not floats:
        return True
    norm = torch.stack([n.float() for n in torch._foreach_norm(floats)]).sum()
    # A norm may overflow where every element is finite: only then look at each.
    return math.isfinite(norm.item()) or all(bool(torch.isfinite(t).all()) for t in floats)


class Exchange:
    """A module's tensors by what federated averaging does with them.

    Only what `state_dict` saves is considered, so embeddings (which save nothing) are never touched.

    - `shared`: parameters that train and floating (or complex) buffers; sent, averaged.
    - `kept`: integer buffers; every client starts from the server's value and its own is dropped.
    - `personal`: names that match a pattern, and what lies in modules with `exchanged = "personal"` (what a loss
      remembers of past batches); a client's own, never sent.
    - everything else (frozen parameters, modules with `exchanged = False` such as an EMA, and what begins with one of
      the prefixes in the model's own attribute `unexchanged`) is left alone.

    A tensor of several names (tied weights) goes by its first; it is personal if any of them matches a pattern, and
    only left alone for `exchanged = False` if all of them lie in such modules or begin so.

    `beside` counts the bytes that a client algorithm sends along with them, each way.

    Args:
        module: the model.
        optimized: parameters held by optimizers, which count as training even while requires_grad is off.
        personal: shell patterns of tensor names.

    Raises:
        ValueError: if a personal pattern matches nothing.
    """

    def __init__(self, module: nn.Module, optimized: Iterable[Tensor], personal: Sequence[str]) -> None:
        self.shared: dict[str, Tensor] = {}
        self.kept: dict[str, Tensor] = {}
        self.personal: dict[str, Tensor] = {}
        self.trained: set[str] = set()
        trained = {id(p) for p in optimized}
        rules = {f"{n}.": getattr(m, "exchanged", True) for n, m in module.named_modules()}
        alone = (*(prefix for prefix, rule in rules.items() if rule is False), *getattr(module, "unexchanged", ()))
        own = tuple(prefix for prefix, rule in rules.items() if rule == "personal")
        matched: set[str] = set()
        named = _named_tensors(module)
        self.first_names = {other: names[0] for names, _ in named for other in names}
        for names, tensor in named:
            name, apart = names[0], all(n.startswith(alone) for n in names)
            frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad and id(tensor) not in trained
            hits = {pattern for pattern in personal if any(fnmatchcase(n, pattern) for n in names)}
            matched |= hits
            if hits and (not frozen or apart):
                self.personal[name] = tensor
            elif frozen or apart:
                continue
            elif all(n.startswith(own) for n in names):
                self.personal[name] = tensor
            elif tensor.is_floating_point() or tensor.is_complex():
                self.shared[name] = tensor
                if isinstance(tensor, nn.Parameter):
                    self.trained.add(name)
            else:
                self.kept[name] = tensor
        if unmatched := set(personal) - matched:
            known = ", ".join(list(self.first_names)[:5])
            raise ValueError(
                f"personal pattern(s) {sorted(unmatched)} match no tensor of the model; names: {known}, ..."
            )
        self.server: dict[str, Tensor] = {}
        self.beside = 0
        self._forms = Forms(module, self.live)

    @property
    def live(self) -> dict[str, Tensor]:
        """The model's own tensors that a turn may change."""
        return self.shared | self.kept | self.personal

    @property
    def num_bytes(self) -> int:
        """What a client sends to the server in a round: the size of the shared tensors, and what goes beside them."""
        return self.beside + sum(tensor.numel() * tensor.element_size() for tensor in self.shared.values())

    def snapshot(self) -> None:
        """Takes the model's present values as the server's."""
        live = self.live
        if not self.server:
            self.server = {name: torch.empty_like(tensor, requires_grad=False) for name, tensor in live.items()}
        copy_tensors(self.server.values(), live.values())

    def load_server(self) -> None:
        """Puts the server's values into the model."""
        copy_tensors(self.live.values(), self.server.values())

    def still_fits(self) -> bool:
        """Whether the model has the tensors that it had, in their forms; some may have been put in others' places."""
        return self._forms.adopt() is None

    def require_sound(self, iterations: int) -> None:
        """Refuses tensors that a client's turn lost, added, brought into another form or broke.

        Args:
            iterations: that the client took.

        Raises:
            ValueError: naming the first that is gone, new, or has another shape, type or device.
            FloatingPointError: naming the first that is not finite.
        """
        if change := self._forms.adopt():
            raise ValueError(f"{change}, after {iterations} local iterations")
        live = self.live
        if not all_finite(list(live.values())):
            bad = next(name for name, tensor in live.items() if not bool(torch.isfinite(tensor).all()))
            raise FloatingPointError(f"{bad} is not finite after {iterations} local iterations")

    def restore_forms(self) -> None:
        """Gives the model its tensors back after a turn that failed; before `load_server`."""
        self._forms.restore(self.server)


def _named_tensors(module: nn.Module) -> list[tuple[list[str], Tensor]]:
    """Parameters and buffers that `state_dict` saves, each once with all its names."""
    named: dict[int, tuple[list[str], Tensor]] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor):
            named.setdefault(id(value), ([], value))[0].append(name)
    return list(named.values())


@torch.no_grad()
def copy_tensors(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copies values in place, many tensors a call."""
    targets, sources = list(targets), list(sources)
    if targets:
        torch._foreach_copy_(targets, sources)


@contextmanager
def naming_difference(model: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> Iterator[None]:
    """Says what of a checkpoint's state does not fit the model, if loading it in the block fails.

    Raises:
        MisconfigurationException: for a RuntimeError of the block.
    """
    try:
        yield
    except RuntimeError as error:
        difference = describe_difference(model, saved)
        raise MisconfigurationException(f"the checkpoint holds another model than this one: {difference}") from error


def describe_difference(model: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> str:
    """In words, how two state dicts differ in names and shapes, with the first name of each kind."""
    shapes = [
        f"{name} is {list(saved[name].shape)} there and {list(own.shape)} here"
        for name, own in model.items()
        if isinstance(own, Tensor) and not is_lazy(own) and name in saved and own.shape != saved[name].shape
    ]
    missing, extra = [n for n in model if n not in saved], [n for n in saved if n not in model]
    parts = [f"{len(shapes)} tensors of another shape ({shapes[0]})"] if shapes else []
    parts += [f"{len(missing)} tensors missing (first: {missing[0]})"] if missing else []
    parts += [f"{len(extra)} tensors unknown to the model (first: {extra[0]})"] if extra else []
    return "; ".join(parts) or "no difference in names or shapes"
