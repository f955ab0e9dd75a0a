"""Sounds: files to waves of 16 kHz, and waves to the spectrograms that models of speech take."""
