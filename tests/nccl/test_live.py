"""What NCCL really has: a running process of this test, configuration files as NCCL reads them, and NCCL's own log as proof."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from eagle_forensics.evidence.nccl.conf import conf_files, read_nccl_conf
from eagle_forensics.evidence.nccl.logs import read_nccl_log
from eagle_forensics.evidence.processes import Process, read_processes
from eagle_forensics.evidence.records import EvidenceError
from eagle_forensics.nccl.audit import Host
from eagle_forensics.nccl.live import Live, examine, gather, logged, not_live

FIXTURES = Path(__file__).parent / "fixtures"
SGLANG = Host(engine="sglang", engine_release="0.5.3")


def codes(issues):
    return [(i.code, i.variable) for i in issues]


@pytest.fixture
def server(tmp_path):
    """A process with a worker of its own that has one variable more."""
    child = "import subprocess, sys, os; subprocess.run([sys.executable, '-c', 'import sys; print(1, flush=True); sys.stdin.read()'], env=os.environ | {'NCCL_PROTO': 'LL'})"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NCCL_PROTO": "Simple", "NCCL_ALGO": "allreduce:ring", "HF_TOKEN": "must-not-be-shown"}
    process = subprocess.Popen([sys.executable, "-c", child], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process, tmp_path
    process.stdin.close()
    process.wait()


def test_a_running_server_and_its_workers(server):
    process, home = server
    (home / ".nccl.conf").write_text("NCCL_BUFFSIZE=4M\nNCCL_ALGO=allreduce:tree\n")
    live = gather(Path(f"/proc/{process.pid}/environ"))
    assert live.proven and len(live.processes) == 2 and "must-not-be-shown" not in repr(live)
    assert (live.env["NCCL_ALGO"], live.env["NCCL_BUFFSIZE"]) == ("allreduce:ring", "4M"), "the process wins over the file"
    found = codes(examine(live, Host(nccl="2.27.5", link="nvlink")))
    assert ("INT_SUFFIX", "NCCL_BUFFSIZE") in found and ("PROCESSES_DIFFER", "NCCL_PROTO") in found and ("CONF_FILE_PRESENT", ".nccl.conf") in found


def test_a_process_that_is_gone():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(EvidenceError, match=r"cannot be read.*PID of a running server"):
        read_processes(process.pid)


def test_what_does_not_reach_the_process_is_named():
    meant = {"NCCL_PROTO": "LL", "NCCL_ALGO": "ring", "NCCL_DEBUG": "INFO", "HOME": "x"}
    assert codes(not_live(meant, {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "tree"}, Host())) == [("NOT_LIVE", "NCCL_ALGO"), ("NOT_LIVE", "NCCL_PROTO")]
    assert codes(not_live({"NCCL_CUMEM_ENABLE": "1"}, {"NCCL_CUMEM_ENABLE": "0"}, SGLANG)) == [], "the engine overwrites it, which is another finding"


def test_a_written_environment_proves_nothing_about_a_process(tmp_path):
    live = gather({"NCCL_ALGO": "allreduce:ring"})
    assert not live.proven and codes(examine(live, Host(), meant={"NCCL_PROTO": "Simple"})) == []
    dump = tmp_path / "environ"
    dump.write_bytes(b"NCCL_ALGO=allreduce:ring\0PATH=/bin\0")
    live = gather(dump)
    assert live.proven and codes(examine(live, Host(), meant={"NCCL_PROTO": "Simple"})) == [("NOT_LIVE", "NCCL_PROTO")]


LOG = read_nccl_log(FIXTURES / "nccl_debug_2.28_graphxml.log")
SEEN = {"NCCL_P2P_LEVEL": "SYS", "NCCL_PROTO": "LL,Simple", "NCCL_GRAPH_FILE": "/mnt/graph.xml"}


@pytest.mark.parametrize(("env", "expected"), [
    (SEEN, []), (SEEN | {"NCCL_P2P_LEVEL": "4"}, []),
    (SEEN | {"NCCL_PROTO": "Simple"}, [("NOT_LIVE", "NCCL_PROTO")]),
    (SEEN | {"NCCL_ALGO": "allreduce:ring"}, [("NOT_LIVE", "NCCL_ALGO")]),
    (SEEN | {"NCCL_BUFFSIZE": "8388608"}, [("NOT_LIVE", "NCCL_BUFFSIZE")]),
    (SEEN | {"NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO", "NCCL_NVLS_ENABLE": "0"}, []),  # NCCL can start without printing these
    ({k: v for k, v in SEEN.items() if k != "NCCL_PROTO"}, [("SET_ELSEWHERE", "NCCL_PROTO")]),
    (SEEN | {"NCCL_DEBUG_SUBSYS": "INIT", "NCCL_DEBUG": "WARN"}, []),  # a start for the log's sake
    (SEEN | {"NCCL_MIN_NCHANNELS": "x"}, []),  # the audit says why it is not taken
])
def test_the_log_as_proof(env, expected):
    assert codes(logged(env, LOG, Host(nccl="2.28.9"))) == expected


def test_the_silence_of_a_short_log_proves_nothing():
    env = SEEN | {"NCCL_ALGO": "allreduce:ring"}
    assert codes(logged(env, replace(LOG, channels=None), Host())) == [], "the start is not in the log"
    without = replace(LOG, environment={**LOG.environment, "NCCL_DEBUG_SUBSYS": "INIT,GRAPH"})
    assert codes(logged(env, without, Host())) == [], "ENV is not logged"


def test_integers_are_compared_as_read():
    log = replace(LOG, environment={"NCCL_BUFFSIZE": "4194304"})
    assert codes(logged({"NCCL_BUFFSIZE": "0x400000"}, log, Host())) == []
    assert codes(logged({"NCCL_BUFFSIZE": "4M"}, log, Host())) == [("NOT_LIVE", "NCCL_BUFFSIZE")]


def test_processes_that_agree_are_silent():
    same = tuple(Process(i, "python", {"NCCL_PROTO": "LL"}) for i in (1, 2))
    assert "PROCESSES_DIFFER" not in [i.code for i in examine(Live({"NCCL_PROTO": "LL"}, True, same), Host())]


def test_configuration_files_as_nccl_reads_them(tmp_path):
    file = tmp_path / "nccl.conf"
    file.write_bytes(b"# comment\nNCCL_PROTO=LL\nNCCL_PROTO=Simple\nexport NCCL_ALGO=Ring\n NCCL_NTHREADS=256\nNCCL_BUFFSIZE='4194304'\r\nnonsense\nHTTP_PROXY=http://u:p@h\nNCCL_X=a=b\n\xff\n")
    found = read_nccl_conf(file)
    assert found.settings == {"NCCL_PROTO": "LL", "NCCL_BUFFSIZE": "'4194304'", "NCCL_X": "a=b"}
    assert [p.split(":")[0] for p in found.problems] == ["line 4 (export NCCL_ALGO)", "line 5 (NCCL_NTHREADS)", "line 6 (NCCL_BUFFSIZE)", "line 7 (nonsense)", "line 10 (\ufffd)"]
    issues = examine(Live(found.settings, True, files=(found,)), Host())
    assert [i.code for i in issues if i.code.startswith("CONF")] == ["CONF_FILE_SYNTAX"] * 5 + ["CONF_FILE_PRESENT"]


def test_which_files_nccl_looks_for(tmp_path):
    system = tmp_path / "etc.conf"
    assert conf_files({"HOME": "/h"}, system) == (Path("/h/.nccl.conf"), system)
    assert conf_files({"HOME": "/h", "NCCL_CONF_FILE": "/x"}, system) == (Path("/x"), system)
    assert conf_files({}, system) == (system,)
    with pytest.raises(EvidenceError, match="NCCL skips"):
        read_nccl_conf(system)
