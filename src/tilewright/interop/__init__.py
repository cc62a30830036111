"""Where Tilewright meets torch's own compile stack: FX graphs, and the backend of `torch.compile`."""

from .fx import from_fx, to_fx

__all__ = ["from_fx", "to_fx"]
