import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("semel.testing")  # the shipped laws explain their failures like tests do

# No deadline and no check of speed: a slow machine is not a bug. The blob lets a failure elsewhere be replayed here.
settings.register_profile("semel", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("semel")
