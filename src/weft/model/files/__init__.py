"""Files of a checkpoint: directories, safetensors, tensor layouts, and detection of changed files."""
