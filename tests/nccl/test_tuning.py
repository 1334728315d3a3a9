"""NCCL's cost model against published latencies, a real log's table, public measurements, and the choices that logs show."""

import pytest

from eagle_forensics.nccl.tuning import (
    Graph,
    System,
    UnsupportedRelease,
    channels,
    choose,
    communicator_channels,
    costs,
)

XML = Graph(2, 24.0, "PHB", 24.0, "PIX", 1)
LOST = Graph(1, 0.1, "SYS", 0.0, "DIS", 1)
PCIE = System(8, 120, XML, XML)
FALLBACK = System(8, 120, LOST, LOST)
H100 = System(8, 90, Graph(12, 20.0, "NVL", 20.0, "PIX"), Graph(12, 20.0, "NVL", 20.0, "PIX"), Graph(8, 40.0, "NVL", 40.0, "PIX"))
TOKEN = 14336


def latencies(system, release, env=None):
    return {f"{a}/{p}": round(c.latency_us, 1) for (a, p), c in costs(system, release, env).items()}


@pytest.mark.parametrize("release", ["2.23.4", "2.27.5", "2.28.9", "2.30.7"])
def test_latencies_of_eight_pcie_ranks(release):
    assert latencies(PCIE, release) == {"RING/LL": 20.6, "TREE/LL": 20.8, "RING/SIMPLE": 88.2, "TREE/SIMPLE": 64.4}


def test_forced_ll128_is_in_the_table():
    found = latencies(PCIE, "2.30.7", {"NCCL_PROTO": "LL,LL128,Simple"})
    assert (found["RING/LL128"], found["TREE/LL128"]) == (49.0, 40.6)


def test_the_real_table_of_two_nodes_with_one_gpu_each():
    """NCCL 2.29.7, network branch: the Tree row of the network stands for the ring as well."""
    graph = Graph(2, 12.0, "PHB", 12.0, "PIX", 1)
    found = latencies(System(2, 90, graph, graph, nodes=2), "2.29.7", {"NCCL_PROTO": "LL,Simple"})
    assert (found["RING/LL"], found["TREE/LL"], found["RING/SIMPLE"]) == (16.6, 16.8, 36.4)


def test_bandwidths_are_those_of_the_logs_table():
    table = costs(PCIE, "2.28.9")
    assert [round(table[w].bandwidth, 1) for w in (("TREE", "LL"), ("TREE", "SIMPLE"), ("RING", "LL"), ("RING", "SIMPLE"))] == [5.8, 22.1, 13.7, 27.4]


@pytest.mark.parametrize(("kib", "measured"), [(32, 26.20), (64, 25.59), (128, 32.09), (256, 37.26)])
def test_predicted_times_lie_within_15_percent_of_public_measurements(kib, measured):
    found = choose(PCIE, "2.30.7", kib * 1024)
    assert (found.algorithm, found.protocol) == ("RING", "LL") and found.time_us == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(("tokens", "us"), [(3, 23.7), (6, 26.9), (16, 37.3), (64, 87.5)])
def test_predicted_times_at_decode_sizes(tokens, us):
    assert choose(PCIE, "2.30.7", tokens * TOKEN).time_us == pytest.approx(us, abs=0.06)


@pytest.mark.parametrize("tokens", [1, 2, 3, 16, 64])
def test_a_lost_graph_means_simple_at_every_size(tokens):
    found = choose(FALLBACK, "2.27.5", tokens * TOKEN)
    assert (found.algorithm, found.protocol) == ("RING", "SIMPLE")


def test_nvlink_goes_from_ring_ll_to_nvls():
    assert [choose(H100, "2.30.7", n).algorithm for n in (TOKEN, 32 * TOKEN, 2 << 20)] == ["RING", "RING", "NVLS"]


def test_ring_ll_takes_one_channel_for_32_kib():
    assert [channels(System(8, 120, Graph(8, 24.0, "PHB"), Graph(8, 24.0, "PHB")), "RING", "LL", n) for n in (TOKEN, 43008, 65536, 229376)] == [1, 1, 2, 7]


def test_more_channels_cannot_be_had_at_43_kb():
    assert choose(PCIE, "2.28.9", 43008, {"NCCL_MIN_CTAS": "8"}).channels == 1
    assert communicator_channels(PCIE) == 4 and communicator_channels(PCIE, {"NCCL_MAX_CTAS": "2", "NCCL_MIN_NCHANNELS": "16"}) == 16


def test_settings_are_obeyed_by_release():
    assert choose(PCIE, "2.28.9", 43008, {"NCCL_ALGO": "allreduce:tree"}).algorithm == "TREE"
    assert choose(PCIE, "2.28.9", 43008, {"NCCL_PROTO": "Simple"}).protocol == "SIMPLE"
    assert choose(PCIE, "2.28.9", 43008, {"NCCL_PROTO": "broadcast:Simple"}).protocol == "LL"
    with pytest.raises(ValueError, match="no algorithm left"):
        choose(PCIE, "2.23.4", 43008, {"NCCL_ALGO": "allreduce:tree"})


def test_excluding_one_protocol_forces_ll128_on_pcie():
    """parseList gives every token that a `^` list does not name the value 1, and LL128 is held back only at 2."""
    assert choose(PCIE, "2.28.9", 43008, {"NCCL_PROTO": "^LL"}).protocol == "LL128"
    assert ("RING", "LL128") not in costs(PCIE, "2.28.9", {"NCCL_PROTO": "broadcast:Simple"})


def test_constants_change_with_the_release():
    assert latencies(PCIE, "2.21.5")["TREE/SIMPLE"] == 392.0
    assert costs(PCIE, "2.20.5")["RING", "LL"].bandwidth == pytest.approx(costs(PCIE, "2.21.5")["RING", "LL"].bandwidth / 2)
    nvlink = System(8, 120, Graph(4, 80.0, "NVL"), Graph(4, 80.0, "NVL"))
    ring = [round(costs(nvlink, r)["RING", "LL128"].bandwidth * 14 / 8 / 4, 1) for r in ("2.28.9", "2.29.2", "2.29.7")]
    assert ring == [73.4, 34.5, 40.0]


@pytest.mark.parametrize("release", ["2.18.6", "2.31.0"])
def test_other_releases_are_not_guessed(release):
    with pytest.raises(UnsupportedRelease, match="was not read"):
        choose(PCIE, release, 43008)


def test_several_nodes_before_223_are_not_guessed():
    with pytest.raises(UnsupportedRelease, match="several nodes"):
        costs(System(16, 90, XML, XML, nodes=2), "2.22.3")
