"""Files of a checkpoint: directories, safetensors, tensor layouts, and changes while they are read."""
