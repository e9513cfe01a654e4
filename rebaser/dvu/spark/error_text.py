"""The line that says why, out of what Python, Java and gRPC make of an error.

Invariant: one line of bounded length, never empty.
"""

import re

_MOST = 300  # characters

_TRACEBACK = "Traceback (most recent call last):\n"
_RAISED = re.compile(r"^(?:\w+\.)*(\w+)(?:: (.*))?$", re.MULTILINE)
_STATUS = re.compile(r"status = StatusCode\.(\w+)\s+details = \"(.*)\"")
_LOST_TASK = re.compile(r"Job aborted .*?Lost task [^)]*\)[^)]*\): (?=\S)")
_ADVICE = re.compile(r" Consider (?:setting|increasing|boosting) .*")


def reason(error: BaseException) -> str:
    """Why, in one line."""
    text = str(error).strip()
    if _TRACEBACK in text:
        name, message = traceback_error(text)
        return f"{name}: {message}"[:_MOST] if message else name
    if found := _STATUS.search(text):
        return f"{found[1]}: {found[2]}"[:_MOST]
    line = _LOST_TASK.sub("", text.partition("\n")[0])
    return _ADVICE.sub("", line).strip()[:_MOST] or type(error).__name__


def traceback_error(text: str) -> tuple[str, str]:
    """Name and message of the exception at the end of the Python traceback in `text`; both empty if there is none."""
    found = _RAISED.search(text.rpartition(_TRACEBACK)[2]) if _TRACEBACK in text else None
    return (found[1][:_MOST], (found[2] or "")[:_MOST]) if found else ("", "")
