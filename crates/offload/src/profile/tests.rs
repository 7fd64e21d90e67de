//! Shipped profiles, and invalid ones.

use super::*;

#[test]
fn all_shipped_profiles_are_read() {
    let names: Vec<_> = Profile::shipped().map(|profile| profile.unwrap().name).collect();
    assert_eq!(names, ["niantic", "connectx6dx", "netdevsim", "unlimited"]);
    assert_eq!(Profile::by_name("tulip"), None);
}

#[test]
fn profile_needs_only_a_name() {
    let mine = Profile::from_toml("name = 'mine'").unwrap();
    assert_eq!((mine.tables, mine.steering), (TableSizes::default(), None));
}

#[test]
fn errors_name_the_place() {
    for (text, parts) in [
        ("nam = 'x'", ["line 1", "unknown field `nam`"]),
        ("name = 'x'\n[tables]\nrecieve = 7", ["line 3", "unknown field `recieve`"]),
        ("name = 'x'\n[[state]]\nrequire = { mode = [] }\ntext = ''", ["line 3", "`mode`"]),
        (
            "name = 'x'\n[[state]]\nrequire = 'reqid'\nerrno = 'ENOENT'\ntext = ''",
            ["line 4", "unknown variant `ENOENT`"],
        ),
        ("name = 'x'\n[steering]\nqueues = 0\nrules = 1", ["profile x", "at least one"]),
    ] {
        let error = Profile::from_toml(text).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}
