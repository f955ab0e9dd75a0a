"""The picker at scale, in virtual time: `python -m benchmarks.scale --help`; results in docs/scale.md."""
