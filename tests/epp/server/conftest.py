"""Properties are about results; how long one example takes depends on who else uses the machine."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
