"""vLLM's loggers of statistics, as arguments of `AsyncLLMEngine.from_engine_args`.

Weft has one line of statistics, about all engines of the program; each of these names asks for it.
"""


class LoggingStatLogger:
    """Asks the engine to log its load every ten seconds."""


class AggregatedLoggingStatLogger(LoggingStatLogger):
    """The same line: it already adds up all engines."""
