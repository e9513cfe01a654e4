"""The line with the reason, extracted from real error texts of PySpark 4.3."""

import pytest

from rebaser.dvu.spark.error_text import reason

PYTHON = """
  An exception was thrown from the Python worker. Please see the stack trace below.
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/some/where.py", line 13, in f
    if kind == "sysexit": sys.exit(3)
                          ^^^^^^^^^^^
{}
 SQLSTATE: 38000

JVM stacktrace:
org.apache.spark.api.python.PythonException: Traceback (most recent call last)
\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:700)
"""

TRACEBACK = "Traceback (most recent call last):"

CRASHED = """\
Job aborted due to stage failure: Task 0 in stage 2.0 failed 1 times, most recent failure: Lost task 0.0 in stage 2.0 \
(TID 18) (localhost executor driver): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). \
Consider setting 'spark.python.worker.faulthandler.enabled' configuration to 'true' for the better Python traceback.
\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:700)
Caused by: java.net.SocketException: Connection reset"""

GRPC = """\
<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses"
\tdebug_error_string = "UNAVAILABLE:failed"
>"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PYTHON.format("SystemExit: 3"), "SystemExit: 3"),
        (PYTHON.format("KeyboardInterrupt"), "KeyboardInterrupt"),
        (PYTHON.format("some.package.Bad: it is\nvery bad"), "Bad: it is"),
        (
            PYTHON.format(
                "ValueError: 1\n\nDuring handling:\n\nTraceback (most recent call last):\n  File\nKeyError: 2"
            ),
            "KeyError: 2",
        ),
        (CRASHED, "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)."),
        (GRPC, "UNAVAILABLE: failed to connect to all addresses"),
        ("plain", "plain"),
        ("first\nsecond", "first"),
        ("", "RuntimeError"),
        ("x" * 999, "x" * 300),
    ],
)
def test_a_reason_is_the_line_that_says_why(text: str, expected: str) -> None:
    assert reason(RuntimeError(text)) == expected
