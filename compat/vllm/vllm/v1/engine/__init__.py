"""The engine and its errors."""
