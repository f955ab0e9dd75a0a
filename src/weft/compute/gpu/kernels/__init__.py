"""The kernels. The order of each row's sums does not depend on batch, chunks or tiles: see `docs/gpu.md`."""
