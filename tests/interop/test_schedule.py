"""What the processes of this suite run as a unit, and in which order. Needs no root."""

import schedule


def test_a_file_is_a_unit_and_the_longest_begins_first():
    tests = ["interop/a.py::one", "interop/a.py::two[x::y]", "interop/b.py::one", "interop/new.py::one"]
    found = schedule.units(tests, {"a.py": 5, "b.py": 20})
    assert list(found) == ["interop/b.py::one", "interop/new.py::one", *tests[:2]], "one that is not known is in the middle"
    assert [found[test] for test in tests] == [("a.py", 0), ("a.py", 0), ("b.py", 0), ("new.py", 0)]


def test_a_long_file_is_cut_into_pieces_of_its_tests_in_their_order():
    tests = [f"interop/a.py::test[{number}]" for number in range(7)]
    found = schedule.units(tests, {"a.py": 100}, piece_seconds=40)
    assert list(found) == tests
    assert [piece for _, piece in found.values()] == [0, 0, 0, 1, 1, 1, 2]
    few = schedule.units(tests[:1], {"a.py": 100}, piece_seconds=40)
    assert few == {tests[0]: ("a.py", 0)}


def test_the_files_of_one_guest_are_a_unit():
    tests = ["interop/test_link.py::one", "interop/a.py::one", "interop/test_fou_kernel.py::one", "interop/test_link.py::two"]
    found = schedule.units(tests, {"test_link.py": 100, "test_fou_kernel.py": 100, "a.py": 150}, piece_seconds=40)
    assert list(found) == [tests[0], tests[3], tests[2], tests[1]]
    assert len(set(found.values())) == 2


def test_every_file_that_boots_the_guest_is_of_its_unit():
    sources = schedule.DURATIONS.parent.glob("test_*.py")
    assert {path.name for path in sources if "qemu_network" in path.read_text()} - {"test_schedule.py"} == schedule.OF_QEMU


def test_durations_are_kept_of_files_that_did_not_run(tmp_path):
    path = tmp_path / "durations.tsv"
    assert schedule.read(path) == {}
    schedule.write({"a.py": 1.25, "b.py": 30.0}, path)
    schedule.write({"a.py": 40.0}, path)
    assert path.read_text().splitlines()[1:] == ["40.0\ta.py", "30.0\tb.py"]
    assert schedule.read(path) == {"a.py": 40.0, "b.py": 30.0}
