"""What is tried and what is not, and a search that ends with a winner, with none, and with failures."""

import numpy as np
import pytest

from eagle_forensics.nccl.ranking import LaunchFailed
from eagle_forensics.nccl.search import DEFAULT, search, space
from tests.nccl.test_tuning import FALLBACK, H100, PCIE

SIZES = (14336, 28672, 43008)
BASE = {"NCCL_CUMEM_ENABLE": "0"}


def names(where):
    return [c.name for c in where.tried]


def skipped(where):
    return {c.name: why for c, why in where.skipped}


def world(effects, seed=0):
    """Launches whose time is 48 us times the effect of every setting that is there."""
    rng = np.random.default_rng(seed)

    def run(configuration, count):
        us = 48.0
        for setting, factor in effects.items():
            name, _, value = setting.partition("=")
            us *= factor if value in configuration.env.get(name, "") and name in configuration.env else 1.0
        return us * np.exp(rng.normal(0, 0.015) + rng.normal(0, 0.04, count))

    return run


def test_the_model_prunes_what_cannot_change_the_choice():
    where = space(release="2.28.9", link="pcie", sizes=SIZES, system=PCIE, base=BASE)
    assert names(where)[0] == DEFAULT and {"proto-ll", "algo-ring"} <= set(skipped(where)) and "algo-tree" in names(where)
    assert "same choice" in skipped(where)["proto-ll"] and "1 of 4 channels" in skipped(where)["min_ctas"]
    assert not any("proto-ll" in n for n in names(where))


def test_an_environment_that_leaves_no_algorithm_prunes_nothing():
    found = space(release="2.21.5", link="pcie", sizes=SIZES, system=PCIE, base={"NCCL_PROTO": "allreduce:LL"})
    assert not found.skipped and len(found.tried) > 4


def test_a_lost_graph_prunes_no_way():
    where = space(release="2.27.5", link="pcie", sizes=SIZES, system=FALLBACK, base=BASE, trusted=False)
    assert {"proto-ll", "p2p-sys", "p2p-off", "p2p-sys+proto-ll"} <= set(names(where))
    assert all(c.env["NCCL_CUMEM_ENABLE"] == "0" for c in where.tried)


def test_nothing_known_tries_everything():
    assert not space(release=None, link=None, sizes=SIZES).skipped


def test_prefixes_are_written_only_where_they_are_read():
    def spelled(release):
        return next(c.env["NCCL_PROTO"] for c in space(release=release, link="pcie", sizes=SIZES).tried if c.name == "proto-ll")

    assert (spelled("2.27.5"), spelled("2.21.5")) == ("allreduce:LL,Simple", "LL")


def test_nvlink_tries_no_peer_to_peer_levels():
    assert not any("p2p" in n for n in names(space(release="2.30.7", link="nvswitch", sizes=SIZES, system=H100)))


def test_a_search_finds_way_and_resource():
    where = space(release="2.27.5", link="pcie", sizes=SIZES, system=FALLBACK, base=BASE, trusted=False)
    found = search(where, world({"NCCL_PROTO=LL": 0.54, "NCCL_P2P_LEVEL=SYS": 0.97, "NCCL_NTHREADS=128": 0.9}), budget=2400)
    assert found.won is found.comparison and found.won.wins
    assert "LL" in found.changes["NCCL_PROTO"] and found.changes["NCCL_NTHREADS"] == "128" and not set(BASE) & set(found.changes)
    assert found.comparison.ratio.low < 0.54 * 0.97 * 0.9 * 1.02 and found.comparison.ratio.high < 0.52


def test_no_change_is_an_answer():
    where = space(release="2.27.5", link="pcie", sizes=SIZES, system=FALLBACK, trusted=False)
    for seed in range(5):
        found = search(where, world({}, seed), budget=1200, seed=seed)
        assert found.won is None


def test_settings_that_do_not_run_are_named():
    where = space(release="2.27.5", link="pcie", sizes=SIZES, system=FALLBACK, trusted=False)
    run = world({"NCCL_PROTO=LL": 0.5})

    def launch(configuration, count):
        if "NCCL_P2P_LEVEL" in configuration.env:
            raise LaunchFailed("not finished after 120 s")
        return run(configuration, count)

    found = search(where, launch, budget=1600)
    assert found.changes.get("NCCL_PROTO") and ("p2p-sys", "not finished after 120 s") in found.failed


def test_a_space_of_one_is_refused():
    where = space(release="2.30.7", link="nvswitch", sizes=SIZES, system=H100)
    with pytest.raises(ValueError, match="nothing to search"):
        search(type(where)(where.tried[:1], ()), world({}))
