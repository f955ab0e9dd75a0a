"""Profile handlers: plugins that choose the scheduling profiles of a request, and combine the endpoints that the
profiles pick.
"""
