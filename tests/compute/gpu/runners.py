"""Runners on a card or in the interpreter, whose rows come to the host."""

import torch

from weft.compute.gpu.card_tensors import TYPES
from weft.compute.gpu.runner import GpuRunner
from weft.compute.gpu.weights import Reader


class OnHost:
    """A runner that gives numpy's rows, for who compares them."""

    def __init__(self, checkpoint, *, max_model_len=512, graphs=True, quantization=None):
        dtype = TYPES[checkpoint.card.dtype]
        reader = Reader(checkpoint.spec, checkpoint.load(), dtype, quantization)
        self.inner = GpuRunner(reader, max_model_len=max_model_len, graphs=graphs)
        self.vocab_size = self.inner.vocab_size
        self.allocate_kv = self.inner.allocate_kv

    def forward(self, batch):
        return self.inner.forward(batch).cpu().numpy()

    def fill_kv(self, value):
        """What slots hold that nobody has written."""
        for pool in self.inner._pools:
            for part in pool:
                part.fill_(value)


def on_device(values):
    """An array where the sampler reads it."""
    tensor = torch.from_numpy(values)
    return tensor.cuda() if torch.cuda.is_available() else tensor
