"""The findings on settings: not taken, not live, able to corrupt data, and without a direct transport are told apart."""

from dataclasses import replace
from pathlib import Path

from eagle_forensics.evidence.nccl.logs import read_nccl_log
from eagle_forensics.finding import Status
from eagle_forensics.nccl.audit import Host
from eagle_forensics.nccl.live import Live
from eagle_forensics.nccl.settings import settings

FIXTURES = Path(__file__).parent / "fixtures"


def of(env, host=None, **more):
    return settings(Live(env, proven=more.pop("proven", False)), host or Host(), **more)


def test_ignored_settings_fail_with_their_rival():
    found, = of({"NCCL_P2P_LEVEL": "sys", "NCCL_BUFFSIZE": "4M", "NCCL_DEBUG": "INFO"}, Host(nccl="2.27.5"))
    assert (found.status, found.fault, found.competitor.fault) == (Status.FAIL, "nccl.env-ignored", "nccl.wrong-size")
    assert found.observed == ["INT_SUFFIX", "LEVEL_CASE"] and "2 NCCL settings of 3 do not" in found.statement and "Write SYS" in found.remedy


def test_a_setting_that_does_not_reach_the_process_fails():
    found, = of({}, proven=True, meant={"NCCL_PROTO": "allreduce:LL,Simple"})
    assert found.observed == ["NOT_LIVE"] and "1 NCCL setting of 1 does not do what it says" in found.statement


def test_what_can_corrupt_data_is_a_fault_of_its_own():
    first, second = of({"NCCL_PROTO": "LL128"}, Host(nccl="2.27.5", link="pcie"))
    assert first.status is Status.PASS
    assert (second.status, second.fault, second.id) == (Status.FAIL, "nccl.ll128-unsafe", "nccl.ll128-on-pcie") and second.observed == "NCCL_PROTO=LL128"
    unknown, = of({"NCCL_PROTO": "LL128"}, Host(nccl="2.27.5"))
    assert unknown.status is Status.PASS and "not known to be NVLink" in unknown.statement, "an unknown link accuses nobody"


def test_a_harmful_setting_that_the_log_proves_absent_accuses_nobody():
    log = read_nccl_log(FIXTURES / "nccl_debug_2.28_graphxml.log")
    whole = replace(log, channels=4, environment={"NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH", "NCCL_P2P_LEVEL": "SYS"})
    env = {"NCCL_PROTO": "LL128", "NCCL_P2P_LEVEL": "SYS"}
    said = of(env, Host(nccl="2.28.9", link="pcie"), log=whole)[-1]
    assert (said.id, said.status, said.fault) == ("nccl.ll128-on-pcie", Status.INCONCLUSIVE, None) and "does not name it" in said.statement
    assert of(env, Host(nccl="2.28.9", link="pcie"), log=replace(whole, channels=None))[-1].status is Status.FAIL, "a log that is cut proves nothing"


def test_no_direct_transport_is_a_fault_of_its_own():
    found = of({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, Host(nccl="2.27.5"))
    assert [(f.status, f.fault) for f in found] == [(Status.PASS, None), (Status.FAIL, "nccl.no-direct-transport")]


def test_warnings_pass_and_are_said():
    found, = of({"NCCL_PROTO": "LL"}, Host(nccl="2.27.5", link="nvlink"))
    assert found.status is Status.PASS and "Side effects" in found.statement and "not proven" in found.statement
    assert "not proven" not in of({"NCCL_PROTO": "LL"}, proven=True)[0].statement
    assert of({})[0].status is Status.PASS


def test_the_log_proves_a_setting_live():
    log = read_nccl_log(FIXTURES / "nccl_debug_2.28_graphxml.log")
    found, = of({"NCCL_P2P_LEVEL": "SYS", "NCCL_PROTO": "LL,Simple", "NCCL_GRAPH_FILE": "/mnt/graph.xml"}, Host(nccl="2.28.9"), log=log)
    assert found.status is Status.PASS and "log names 3 of them" in found.statement


def test_without_an_environment_the_log_accuses_but_never_acquits():
    log = replace(read_nccl_log(FIXTURES / "nccl_debug_2.28_graphxml.log"), environment={"NCCL_PROTO": "LL128"})
    first, second = settings(None, Host(nccl="2.28.9", link="pcie"), log=log)
    assert (first.status, second.fault) == (Status.SKIPPED, "nccl.ll128-unsafe") and "names no misspelt one" in first.statement
    wrong, = settings(None, Host(nccl="2.28.9", link="pcie"), log=replace(log, environment={"NCCL_P2P_LEVEL": "sys"}))
    assert (wrong.status, wrong.fault) == (Status.FAIL, "nccl.env-ignored")
    assert [f.status for f in settings(None, Host(nccl="2.28.9", link="nvlink"), log=log)] == [Status.SKIPPED]


def test_absence_and_an_environment_nobody_reads():
    assert settings(None, Host())[0].status is Status.SKIPPED
    assert settings(Live({"NCCL_P2P_LEVEL": "sys"}, False), Host(), off="one rank, no all-reduce")[0].status is Status.SKIPPED
