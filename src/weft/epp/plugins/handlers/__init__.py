"""Profile handlers: which scheduling profiles a request runs through, and what follows from them."""
