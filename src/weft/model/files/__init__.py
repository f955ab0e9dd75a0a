"""Files of a checkpoint: directories, safetensors, tensor layouts, and changes after loading."""
