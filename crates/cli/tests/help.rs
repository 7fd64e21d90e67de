//! `uxfrm --help` and its lists.

use std::process::Command;

fn said(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_uxfrm")).args(words).output();
    let output = output.expect("the binary was built for this test");
    String::from_utf8(output.stdout).expect("help is UTF-8")
}

#[test]
fn help_and_manual_begin_with_the_description() {
    assert!(said(&["--help"]).starts_with("The Linux XFRM stack in user space"));
    assert!(said(&["man"]).contains("uxfrm \\- The Linux XFRM stack in user space"));
}

/// Checks each name by a filter key that no bench has: the error lists the keys of that bench.
#[test]
fn help_and_completion_name_every_bench() {
    let help = said(&["bench", "--help"]);
    let (_, listed) = help.split_once("[possible values: ").expect("a list");
    let listed: Vec<_> =
        listed.split_once(']').expect("its end").0.split([',', ' ', '\n']).collect();
    let listed: Vec<_> = listed.into_iter().filter(|name| !name.is_empty()).collect();
    assert!(listed.len() > 5, "{listed:?}");
    let completion = said(&["completions", "bash"]);
    for name in listed {
        let refused = Command::new(env!("CARGO_BIN_EXE_uxfrm"))
            .args(["bench", name, "--only", "nosuchkey=1"])
            .output()
            .expect("the binary was built for this test");
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(text.contains(&format!("cases of bench {name} have")), "{text}");
        assert!(completion.contains(name), "{name}");
    }
}
