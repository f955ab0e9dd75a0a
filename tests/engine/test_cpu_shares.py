"""weft.engine.start.cpu_shares"""

import pytest

from weft.engine.start.cpu_shares import in_order, share


@pytest.mark.parametrize(
    ("num_cpus", "size", "shares"),
    [
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1], [2, 3, 4]]),
        (2, 3, [[0], [0], [1]]),
        (1, 2, [[0], [0]]),
    ],
)
def test_cpus_are_shared_out(num_cpus: int, size: int, shares: list[list[int]]):
    """Each CPU has one engine, as long as they suffice."""
    assert [share(list(range(num_cpus)), rank, size) for rank in range(size)] == shares


def test_cores_and_nodes_stay_together(tmp_path):
    """Two threads of a core are one engine's; and what is not reported is one node."""
    for cpu, (node, core) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1), (0, 0), (1, 0)]):
        place = tmp_path / "cpu" / f"cpu{cpu}"
        (place / "topology").mkdir(parents=True)
        (place / f"node{node}").mkdir()
        (place / "topology" / "core_id").write_text(f"{core}\n")
    assert in_order(range(6), tmp_path) == [0, 4, 2, 1, 5, 3]
    assert in_order([3, 1], tmp_path / "nowhere") == [1, 3]
