"""nats-server and Spark as child processes, started and stopped by Rebaser itself."""

from typing import Final

# Jobs that run on a Spark at once. An embedded one gets task slots for as many.
MAX_CONCURRENT_JOBS: Final = 8
