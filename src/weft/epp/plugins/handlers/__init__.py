"""Profile handlers: choose the scheduling profiles of a request, and combine their picks into a schedule."""
