"""Dumps behind fsspec URLs: listed, fetched file by file as they are asked for, with limits and without secrets."""

import functools
import http.server
import threading

import fsspec
import pytest
import torch

from eagle_forensics.address import url_of
from eagle_forensics.case import CaseError, load_case
from eagle_forensics.evidence import remote
from eagle_forensics.evidence.dumps import find_dump, iter_samples, read_sample
from eagle_forensics.evidence.records import EvidenceError
from tests.evidence.recordings import WRITERS, H, planes, speculators_v1


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EAGLE_FORENSICS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def memory():
    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def put(fs, folder, at="/bucket/dump"):
    for file in [p for p in folder.rglob("*") if p.is_file()]:
        fs.pipe(f"{at}/{file.relative_to(folder)}", file.read_bytes())


def here(tmp_path):
    return sorted(p.name for p in (tmp_path / "cache/remote").rglob("*") if p.is_file())


@pytest.mark.parametrize("name", WRITERS)
def test_every_layout_is_read_from_far(name, tmp_path, memory):
    WRITERS[name](tmp_path / "dump")
    put(memory, tmp_path / "dump")
    info = find_dump("memory://bucket/dump")
    assert info.format == name and info.path.name == "dump"
    assert torch.equal(read_sample(info, 0).planes[0].data, planes()[0])
    assert [s.sample_id for s in iter_samples(info)] == [s.sample_id for s in iter_samples(find_dump(tmp_path / "dump"))]


def test_only_files_that_are_asked_for_are_fetched(tmp_path, memory):
    speculators_v1(tmp_path / "made", 30)
    (tmp_path / "made/manifest.json").write_text('{"planes": ["a", "b", "c", "d"]}')
    put(memory, tmp_path / "made")
    info = find_dump("memory://bucket/dump")
    assert len(info.files) == 30 and info.labels == ("a", "b", "c", "d")
    assert len(here(tmp_path)) == 6
    read_sample(info, 20)
    assert len(here(tmp_path)) == 7 and "data_20.pt" in here(tmp_path)


def test_a_dump_that_was_recorded_again_is_fetched_again(tmp_path, memory):
    speculators_v1(tmp_path / "made", 1)
    put(memory, tmp_path / "made")
    find_dump("memory://bucket/dump")
    torch.save({"hidden_states": planes(7), "input_ids": torch.arange(7)}, tmp_path / "made/data_0.pt")
    put(memory, tmp_path / "made")
    assert torch.equal(read_sample(find_dump("memory://bucket/dump"), 0).planes[0].data, planes(7)[0])
    assert here(tmp_path) == ["data_0.pt"]


def test_a_file_that_is_too_large_or_vanishes_is_named(tmp_path, memory, monkeypatch):
    speculators_v1(tmp_path / "made", 8)
    put(memory, tmp_path / "made")
    info = find_dump("memory://bucket/dump")
    memory.rm("/bucket/dump/data_6.pt")
    problems: list[str] = []
    assert len(list(iter_samples(info, problems=problems))) == 7
    assert len(problems) == 1 and "memory://bucket/dump: data_6.pt cannot be fetched (FileNotFoundError)" in problems[0]
    monkeypatch.setattr(remote, "FILE_LIMIT", 10)
    with pytest.raises(EvidenceError, match="does not fit"):
        find_dump("memory://bucket/dump")
    assert not [n for n in here(tmp_path) if n.endswith(".tmp")]


def test_one_remote_file_is_a_dump(tmp_path, memory):
    speculators_v1(tmp_path / "made", 1)
    put(memory, tmp_path / "made")
    assert len(find_dump("memory://bucket/dump/data_0.pt").files) == 1


@pytest.mark.parametrize(("url", "message"), [
    ("memory://bucket/absent", "nothing there|cannot be listed"), ("nosuch://bucket/x", "no file system for it here"), ("http://127.0.0.1:9/x", "no file system|nothing there|cannot be listed")])
def test_what_cannot_be_listed_says_why(url, message, memory):
    with pytest.raises(EvidenceError, match=message):
        find_dump(url)


def test_no_secret_of_a_url_is_shown(memory):
    with pytest.raises(EvidenceError) as refused:
        find_dump("nosuch://me:hunter2@host/x?sig=abc")
    assert "hunter2" not in str(refused.value) and "abc" not in str(refused.value)


def test_names_that_climb_out_are_not_fetched(tmp_path, memory, monkeypatch):
    speculators_v1(tmp_path / "made", 1)
    put(memory, tmp_path / "made")
    found = memory.find("/bucket/dump", detail=True)
    found["/bucket/dump/../../../climbed.pt"] = {"size": 1}
    monkeypatch.setattr(type(memory), "find", lambda *_, **__: found)
    assert [f.name for f in find_dump("memory://bucket/dump").files] == ["data_0.pt"]


def test_a_url_in_a_case(tmp_path, memory):
    (tmp_path / "case.yaml").write_text("name: a\ntraining: {dump: {path: 'memory://bucket/dump'}}\ndrafter: {path: 's3://b/d'}")
    case = load_case(tmp_path)
    assert url_of(case.training.dumps[0].path) == "memory://bucket/dump"
    assert [key for key, _ in case.missing_evidence()] == ["drafter.path"]
    speculators_v1(tmp_path / "made", 2)
    put(memory, tmp_path / "made")
    assert find_dump(case.training.dumps[0].path).widths == (H,) * 4
    (tmp_path / "case.yaml").write_text("name: a\ntraining: {dump: {path: 's3://key:secret@host/dump'}}")
    with pytest.raises(CaseError, match="holds no secrets") as refused:
        load_case(tmp_path)
    assert "secret@" not in str(refused.value)


@pytest.mark.parametrize(("path", "url"), [("s3://b/d", "s3://b/d"), ("s3:/b/d", "s3://b/d"), ("/a/b", None), ("./x:/y", None), ("c:/x", None), ("file:///a", None), ("a/b", None)])
def test_paths_and_urls_are_told_apart(path, url):
    assert url_of(path) == url


def test_a_folder_on_a_web_server(tmp_path):
    speculators_v1(tmp_path / "made/dump", 3)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path / "made")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        info = find_dump(f"http://127.0.0.1:{server.server_address[1]}/dump")
        assert [s.sample_id for s in iter_samples(info)] == ["data_0.pt", "data_1.pt", "data_2.pt"]
        one = find_dump(f"http://127.0.0.1:{server.server_address[1]}/dump/data_1.pt")
        assert [s.sample_id for s in iter_samples(one)] == ["data_1.pt"]
        server.shutdown()
