"""Every program that a test starts comes with a package that scripts/prerequisites lists, or
with Debian's base. Needs no root."""

import ast
import importlib.machinery
import importlib.util
import re
import subprocess

import pytest

import prerequisite

# Functions whose first argument is a program, or a list that begins with one.
STARTS = {"run", "command", "Popen", "check_output", "check_call", "call", "programs"}
# What rustup brings, the names of examples, which a test runs, and what packages lay in a root.
OWN = {"cargo", "rustc", "strongswan", "libreswan", "uxfrm", "apparmor_parser"}
RUST = re.compile(r'Command::new\("([^"]+)"\)')
# Benches start peers where they are installed, and say so where they are not.
RUST_PLACES = ("crates", "testkit")


@pytest.fixture(scope="module")
def bare_path():
    """scripts/bare-path as a module."""
    path = str(prerequisite.REPOSITORY / "scripts/bare-path")
    loader = importlib.machinery.SourceFileLoader("bare_path", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bare_path", loader))
    loader.exec_module(module)
    missing = [name for name in module.listed() if name not in module.installed()[0]]
    if missing:
        prerequisite.not_run(f"needs what scripts/prerequisites lists: {' '.join(missing)}")
    return module


def first_word(call):
    """The program that a call starts, if it names one."""
    if not call.args:
        return None
    word = call.args[0]
    if isinstance(word, (ast.List, ast.Tuple)) and word.elts:
        word = word.elts[0]
    return word.value if isinstance(word, ast.Constant) and isinstance(word.value, str) else None


def named_in(source):
    """Programs that a Python source starts by name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in STARTS and (word := first_word(node)) and re.fullmatch(r"[a-z][a-z0-9_.+-]*", word):
                yield word


def started():
    """Each program that tests start, and where."""
    found = {}
    for path in (prerequisite.REPOSITORY / "tests").rglob("*.py"):
        for name in named_in(path.read_text()):
            found.setdefault(name, path)
    for place in RUST_PLACES:
        for path in (prerequisite.REPOSITORY / place).rglob("*.rs"):
            if "tests" in path.parts or path.name == "tests.rs":
                for name in RUST.findall(path.read_text()):
                    found.setdefault(name, path)
    return found


def test_every_program_is_brought_by_a_listed_package(bare_path):
    brought = bare_path.programs(bare_path.closure())
    strangers = {name: str(path) for name, path in started().items() if name not in brought and name not in OWN}
    assert not strangers, f"no package of scripts/prerequisites has these: {strangers}"


def test_a_program_of_a_package_that_is_not_listed_is_found(bare_path, monkeypatch):
    every = bare_path.listed()
    monkeypatch.setattr(bare_path, "listed", lambda: [name for name in every if name != "ethtool"])
    brought = bare_path.programs(bare_path.closure())
    assert "ethtool" in started() and "ethtool" not in brought and "ip" in brought


def test_a_path_of_listed_programs_is_enough_to_run_them(bare_path, tmp_path):
    bare_path.main([str(tmp_path / "bin")])
    script = 'ip -V | cut -c 1-10 && uname -s | awk "{print \\$1}" && command -v make || echo no make'
    done = subprocess.run(["sh", "-c", script], env={"PATH": str(tmp_path / "bin")}, stdout=subprocess.PIPE, text=True)
    assert done.stdout.splitlines() == ["ip utility", "Linux", "no make"]
