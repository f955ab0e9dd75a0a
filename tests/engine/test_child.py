"""The engine's process before it has been told anything."""

import psutil

from weft.engine.front.child import Child


async def test_a_child_that_is_told_nothing_ends_by_itself():
    """A front that found no model closes the pipe; the engine then has no complaint."""
    child = await Child.spawn()
    child.process.stdin.close()
    assert await child.process.wait() == 0
    await child.discard()


async def test_a_discarded_child_is_gone():
    """Whatever it was doing; and again changes nothing."""
    child = await Child.spawn()
    await child.discard()
    await child.discard()
    assert not psutil.pid_exists(child.process.pid)
