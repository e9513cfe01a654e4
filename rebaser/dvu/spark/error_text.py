"""Extracts the reason for an error from the error texts of Python, Java and gRPC.

Invariant: a reason is one line of bounded length, and never empty.
"""

import re

_MAX_CHARS = 300

_TRACEBACK = "Traceback (most recent call last):\n"
_RAISED = re.compile(r"^(?:\w+\.)*(\w+)(?:: (.*))?$", re.MULTILINE)
_STATUS = re.compile(r"status = StatusCode\.(\w+)\s+details = \"(.*)\"")
_LOST_TASK = re.compile(r"Job aborted .*?Lost task [^)]*\)[^)]*\): (?=\S)")
_ADVICE = re.compile(r" Consider (?:setting|increasing|boosting) .*")


def reason(error: BaseException) -> str:
    """Return the reason for `error` in one line."""
    text = str(error).strip()
    if _TRACEBACK in text:
        name, message = traceback_error(text)
        return f"{name}: {message}"[:_MAX_CHARS] if message else name
    if match := _STATUS.search(text):
        return f"{match[1]}: {match[2]}"[:_MAX_CHARS]
    line = _LOST_TASK.sub("", text.partition("\n")[0])
    return _ADVICE.sub("", line).strip()[:_MAX_CHARS] or type(error).__name__


def traceback_error(text: str) -> tuple[str, str]:
    """Return the name and the message of the exception at the end of the Python traceback in `text`. Both are empty if
    `text` contains no traceback."""
    match = _RAISED.search(text.rpartition(_TRACEBACK)[2]) if _TRACEBACK in text else None
    return (match[1][:_MAX_CHARS], (match[2] or "")[:_MAX_CHARS]) if match else ("", "")
