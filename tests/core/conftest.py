"""Property tests on a busy machine: no deadline per example, and how to repeat a failure."""

from hypothesis import settings

settings.register_profile("zkconsumer", deadline=None, print_blob=True)
settings.load_profile("zkconsumer")
