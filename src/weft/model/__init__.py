"""What a checkpoint is: its facts, its decoder spec, its tensors and the models that ship with Weft."""
