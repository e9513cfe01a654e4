"""`rebaser` as it was before history: it reads commits up to version 2. With `history_for` 0, it also writes no
others."""

import sys
from collections.abc import Mapping
from dataclasses import replace

from rebaser.change_set.log import commit_log
from rebaser.cli import main
from rebaser_client.log import commits
from rebaser_core.commit import Commit
from rebaser_core.encoding.envelope import MessageRegistry, MessageType
from rebaser_core.limits import COMMIT_LIMITS, Limits
from rebaser_core.messages.commit import COMMIT, CommitV2, check_is_commit, upgrade_v2


def read(body: CommitV2, limits: Limits, version: int) -> Commit:
    return COMMIT.read(upgrade_v2(body), limits, version)


OLDER = MessageRegistry((MessageType(COMMIT.name, Commit, COMMIT.bodies[:2], COMMIT.upgrades[:1], read, COMMIT.write),))


def decode_commit(
    headers: Mapping[str, str] | None,
    payload: bytes,
    limits: Limits = COMMIT_LIMITS,
    *,
    sequence: int = 0,
    history: bool = True,
) -> Commit:
    check_is_commit(headers)
    return replace(OLDER.decode(headers, payload, limits, Commit), sequence=sequence)


if __name__ == "__main__":
    commit_log.decode_commit = commits.decode_commit = decode_commit  # type: ignore[attr-defined]
    sys.exit(main())  # type: ignore[func-returns-value]
