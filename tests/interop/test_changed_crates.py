"""scripts/changed-crates finds the crates that have changed. Needs no root."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess

import pytest

from prerequisite import REPOSITORY

ROOT = pathlib.Path("/repository")


@pytest.fixture(scope="module")
def changed_crates():
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("changed_crates", str(REPOSITORY / "scripts" / "changed-crates"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("changed_crates", loader))
    loader.exec_module(module)
    return module


def package(name, place):
    return {"name": name, "manifest_path": f"{ROOT}/{place}/Cargo.toml"}


PACKAGES = [
    package("packet", "crates/packet"),
    package("packet-more", "crates/packet-more"),
    package("engine", "crates/engine"),
    package("testkit", "testkit"),
]


@pytest.mark.parametrize(
    "files, expected",
    [
        ([], set()),
        (["docs/esp.md", "scripts/test"], set()),
        (["crates/packet-more/src/lib.rs"], {"packet-more"}),
        (["crates/engine/src/lib.rs", "docs/esp.md", "testkit/Cargo.toml"], {"engine", "testkit"}),
        (["Cargo.lock"], {"packet", "packet-more", "engine", "testkit"}),
    ],
    ids=["nothing", "no crate", "prefix", "several", "lock"],
)
def test_changed_crates_are_those_with_a_changed_file(files, expected, changed_crates):
    assert changed_crates.changed(PACKAGES, files, ROOT) == expected


def test_a_file_that_moved_counts_where_it_was_too(changed_crates, tmp_path, monkeypatch):
    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "old").write_text("the same in both\n" * 20)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "before")
    git("mv", "old", "new")
    git("commit", "-qm", "after")
    monkeypatch.setattr(changed_crates, "REPOSITORY", tmp_path)
    assert set(changed_crates.changed_files("HEAD~1")) == {"old", "new"}


def test_check_stops_where_the_changed_crates_are_not_found():
    command = [REPOSITORY / "scripts" / "check", "no-such-branch"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode != 0 and "no branch or commit no-such-branch" in ended.stderr
    assert "checking" not in ended.stdout
