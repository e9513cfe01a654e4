"""The Rebaser server, its updates of dependent values on Spark, and the command line."""

import os

__version__ = "0.1.0"

if os.environ.get("REBASER_TEST_THRESHOLDS"):
    from rebaser.runtime import forced_thresholds

    forced_thresholds.apply_from_environment()
