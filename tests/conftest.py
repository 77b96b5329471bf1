import pytest
from hypothesis import settings

pytest.register_assert_rewrite("semel.testing")  # the shipped laws explain their failures like tests do

# No deadline: a slow disk is not a bug. The blob lets a failure seen elsewhere be replayed here.
settings.register_profile("semel", deadline=None, print_blob=True)
settings.load_profile("semel")
