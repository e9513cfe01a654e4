"""`rebaser` for tests in which garbage is collected after seconds: nearly all content is in blobs, and a blob is fresh
for less than a second."""

import runpy

from rebaser_core import thresholds
from rebaser_core.blobs import garbage
from rebaser_core.thresholds import Thresholds

FRESH_FOR = 0.7  # seconds

if __name__ == "__main__":
    garbage.FRESH_FOR = FRESH_FOR
    thresholds.now = Thresholds(inline_max_updates=0, inline_max_bytes=0, inline_tail_max_bytes=0, max_deltas=2)
    runpy.run_module("tests.support.sparkless_server", run_name="__main__")
