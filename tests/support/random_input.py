"""Sets the number of examples of a property test, relative to the number in `conftest.py`."""

from typing import Any

from hypothesis import settings


def examples(factor: float, **more: Any) -> settings:
    """Return settings for `factor` times the usual number of examples."""
    usual = settings.get_profile(settings.get_current_profile_name()).max_examples
    return settings(max_examples=round(factor * usual), **more)
