"""One ext_proc stream: the messages about one HTTP request and its response."""
