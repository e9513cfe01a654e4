"""Defines the stored form of a commit, and the error for a commit that cannot be stored."""

from rebaser_client.blobs.freshness import Freshness
from rebaser_core.commit import Commit
from rebaser_core.errors import RebaserError
from rebaser_core.record import record


class UnstorableCommit(RebaserError):  # noqa: N818 - a state of the commit
    """Raised if a commit cannot be stored. Nothing was appended, and another attempt would fail again.

    Either the commit is larger than NATS accepts, or its bytes decode to a different commit, which is a bug in Rebaser.
    """

    default_code = "unstorable_commit"


@record
class EncodedCommit:
    """A commit and its bytes, which were verified by decoding them.

    `blob_size` is the total size, in bytes, of the blobs that a reader has to load to fold the commit. `freshness`
    measures the age of the blobs that the commit refers to, if any.
    """

    commit: Commit
    headers: dict[str, str]
    payload: bytes
    blob_size: int
    freshness: Freshness | None = None
