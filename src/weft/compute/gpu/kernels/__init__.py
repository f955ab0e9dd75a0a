"""The kernels. Each row's sums have one order, which batch, chunks and tiles do not change: see `docs/gpu.md`."""
