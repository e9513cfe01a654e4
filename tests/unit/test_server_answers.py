"""What a client makes of the answers of servers to a ping."""

from dataclasses import replace

from rebaser_client.admin.servers import ServerInfo, UpdateInfo, _server_info, holders_of

ONE = ServerInfo("one", "1.2", 3, 1000, "ready")


def test_what_servers_of_other_versions_tell_is_read_as_far_as_it_goes() -> None:
    told = {"id": "one", "version": "2", "owned": 1, "slots": 2, "dvu": "ready"}
    assert (_server_info(told).updates, _server_info(told).held) == ((), 0)
    update = {"workspace": "shop", "change_set": "main", "done": 3, "total": None, "seconds": 4.5}
    found = _server_info(told | {"mood": "good", "held": 2, "updates": [update | {"more": 1}]})
    assert (found.updates, found.held) == ((UpdateInfo("shop", "main", 3, None, 4.5),), 2)


def test_answers_are_enough_once_they_account_for_the_delivered_tasks_or_nobody_is_missing() -> None:
    """A task that was returned with a delay counts as delivered, although no server has it."""
    assert holders_of(ONE.owned)([ONE])
    assert not holders_of(ONE.owned + 1)([ONE])
    assert holders_of(ONE.owned + 1)([replace(ONE, held=1)])
    assert holders_of(ONE.owned + 1, {"one"})([ONE])
    assert not holders_of(ONE.owned + 1, {"one", "two"})([ONE])
    assert holders_of(ONE.owned, {"one", "two"})([ONE])
