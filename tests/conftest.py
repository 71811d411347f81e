"""Shared by all tests."""

import os

import hypothesis
import pytest
import torch

# Each example prints its own reproduction line on failure; time limits would make a slow machine fail.
hypothesis.settings.register_profile("onebit", deadline=None, max_examples=60, print_blob=True)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "onebit"))


@pytest.fixture(autouse=True)
def _seeded():
    """Every test starts from the same random state, alone or in company."""
    torch.manual_seed(0)
