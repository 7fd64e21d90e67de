"""scripts/changed-crates finds the crates that a change can break. Needs no root."""

import importlib.machinery
import importlib.util
import pathlib

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


def package(name, place, uses=(), tests_use=()):
    dependencies = [{"name": each, "kind": None} for each in uses] + [{"name": each, "kind": "dev"} for each in tests_use]
    return {"name": name, "manifest_path": f"{ROOT}/{place}/Cargo.toml", "dependencies": dependencies}


PACKAGES = [
    package("packet", "crates/packet", tests_use=["testkit"]),
    package("packet-more", "crates/packet-more"),
    package("engine", "crates/engine", uses=["packet"], tests_use=["testkit"]),
    package("cli", "crates/cli", uses=["engine"]),
    package("testkit", "testkit", uses=["engine"]),
]


@pytest.mark.parametrize(
    "files, expected",
    [
        ([], set()),
        (["docs/esp.md", "scripts/test"], set()),
        (["crates/cli/src/main.rs"], {"cli"}),
        (["crates/packet-more/src/lib.rs"], {"packet-more"}),
        (["crates/engine/src/lib.rs", "docs/esp.md"], {"engine", "cli", "testkit"}),
        (["testkit/src/lib.rs"], {"testkit", "packet", "engine"}),
        (["Cargo.lock"], {"packet", "packet-more", "engine", "cli", "testkit"}),
    ],
    ids=["nothing", "no crate", "nobody's", "prefix", "used", "for tests", "lock"],
)
def test_affected_crates_are_the_changed_and_their_users(files, expected, changed_crates):
    assert changed_crates.affected(PACKAGES, files, ROOT) == expected
