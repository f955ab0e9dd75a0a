"""vLLM's engine behind `EngineClient`: `weft serve --engine vllm`. `engine.py` alone imports vLLM."""
