"""The operations of the client that read a long list in pages."""

from rebaser_client.log.changes import Definition, check_limit
from rebaser_client.log.entries import Entry, read_queue
from rebaser_client.log.positions import At
from rebaser_client.log.scan import ValueHistory, find_definitions
from rebaser_client.operations.reads import ReadOperations
from rebaser_client.requests.sender import translate_missing_stream
from rebaser_core.ids import ChangeSetKey


class PageOperations(ReadOperations):
    """The operations that read in pages. `RebaserClient` inherits them."""

    async def definitions(self, workspace: str, change_set: str, *ids: str) -> dict[str, Definition]:
        """Return the definitions of the values `ids`, by id. Ids that do not exist are left out.

        Only these values are read, and not whether they are stale.
        """
        with translate_missing_stream():
            loader = await self._state_loader()
            state = await loader.load_values(ChangeSetKey.of(workspace, change_set), ids, stale=False)
        found = {id_: state.cells.edit_of(id_) for id_ in ids}
        return {id_: one for id_, one in found.items() if one is not None}  # type: ignore[misc] # never `Remove`

    async def value_history(
        self, workspace: str, change_set: str, id_: str, *, at: At | None = None, limit: int = 20
    ) -> ValueHistory:
        """Find up to `limit` commits that defined or removed the value `id_`, newest first, from the position `at` back
        to the creation of the change set. None as `at` means the newest commit.

        A call ends after 2,000 commits, 64 MiB or 2 seconds, whichever comes first, but reads at least one commit. To
        search on, pass `next` of its result as `at`; None means that there are no older commits.

        Raise `PositionPurged`, and `UnprocessableError` with code `no_such_position`, like `state`.
        """
        check_limit(limit)
        with translate_missing_stream():
            return await find_definitions(self._reader, ChangeSetKey.of(workspace, change_set), id_, at=at, limit=limit)

    async def queue(self, workspace: str, change_set: str, *, after: int = 0, limit: int = 50) -> list[Entry]:
        """Return up to `limit` requests in the queue of the change set after the stream sequence `after`, oldest first.

        The first ones may be decided already: servers delete requests a little later. To read the next page, pass the
        `sequence` of the last request as `after`. Each request is read by a call of its own, so a page takes no more
        memory than its requests.
        """
        check_limit(limit)
        with translate_missing_stream():
            return await read_queue(
                self._js, self._subjects, ChangeSetKey.of(workspace, change_set), after=after, limit=limit
            )

    async def last_decided(self, workspace: str, change_set: str) -> int:
        """Return the stream sequence up to which the requests in the queue of the change set are decided; 0 if none is.

        Sequences of an earlier stream of requests, which was deleted, do not count.
        """
        with translate_missing_stream():
            newest = await self._reader.last(ChangeSetKey.of(workspace, change_set))
            if newest is None or newest.applied is None:
                return 0
            stream = await self._js.stream_info(self._subjects.requests_stream)
        return newest.applied.sequence if newest.applied.stream == stream.created else 0
