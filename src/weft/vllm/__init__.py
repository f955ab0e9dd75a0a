"""vLLM's engine as an `EngineClient`, for `weft serve --engine vllm`. Only `engine.py` and `speech_model.py` import
vLLM.
"""
