"""Messages between the front and the engine, and the channels that carry them."""
