"""How many examples a property test makes; see `conftest.py`, where the usual number stands."""

from typing import Any

from hypothesis import settings


def examples(factor: float, **more: Any) -> settings:
    """Settings for `factor` times the usual number of examples."""
    usual = settings.get_profile(settings.get_current_profile_name()).max_examples
    return settings(max_examples=round(factor * usual), **more)
