"""Makes `embedded:tiny-whisper`, the toy that transcribes tones."""
