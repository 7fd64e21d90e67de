//! Completion in a real bash, and the manual's files.

use std::process::Command;

use crate::programs::uxfrm;

const UXFRM: &str = env!("CARGO_BIN_EXE_uxfrm");

/// What bash offers at the end of a command line.
fn offered(line: &str) -> Option<Vec<String>> {
    let words: Vec<String> = line.split(' ').map(|word| format!("'{word}'")).collect();
    let script = format!(
        "source <('{UXFRM}' completions bash)\nCOMP_WORDS=({})\nCOMP_WORDS[0]='{UXFRM}'\nCOMP_CWORD={}\nCOMP_LINE='{line}'\n\
         COMP_POINT=${{#COMP_LINE}}\n_uxfrm_words '{UXFRM}' \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" "),
        words.len() - 1,
    );
    let Ok(output) = Command::new("bash").args(["--norc", "-c", &script]).output() else {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "not run: no bash");
        eprintln!("not run: no bash");
        return None;
    };
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(str::to_owned).collect())
}

#[test]
fn bash_completes_commands_and_the_words_of_their_grammars() {
    for (line, words) in [
        ("uxfrm xf", &["xfrm"][..]),
        ("uxfrm completions ba", &["bash"]),
        ("uxfrm xfrm ", &["help", "monitor", "policy", "sa", "state"]),
        ("uxfrm xfrm -s state al", &["allocspi"]),
        ("uxfrm xfrm state add src 10.0.0.1 mode t", &["transport", "tunnel"]),
        ("uxfrm xfrm policy add dir f", &["fwd"]),
        ("uxfrm xfrm state add aead rfc45", &["rfc4543\\(gcm\\(aes\\)\\)"]),
        ("uxfrm xfrm state add offload packet dev l", &["lo"]),
        ("uxfrm fou ", &["add", "delete", "show"]),
        ("uxfrm fou add port 5555 ipproto g", &["gre"]),
        ("uxfrm link add tun1 type gre encap ", &["fou", "gue", "none"]),
        ("uxfrm link del l", &["lo"]),
    ] {
        let Some(offered) = offered(line) else { return };
        assert_eq!(offered, words, "{line}");
    }
}

#[test]
fn each_shell_has_a_script_that_asks_for_the_grammar() {
    for shell in ["bash", "zsh", "fish"] {
        let outcome = uxfrm(&["completions", shell]);
        assert_eq!(outcome.code, Some(0));
        assert!(outcome.out.contains("complete-$"), "{shell}");
        assert!(outcome.out.contains("fou") && outcome.out.contains("link"), "{shell}");
        assert!(outcome.out.len() > 1000, "{shell}");
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("man8");
    assert_eq!(uxfrm(&["man", path.to_str().unwrap()]).code, Some(0));
    for name in ["uxfrm", "uxfrm-run", "uxfrm-xfrm", "uxfrm-fou", "uxfrm-link", "uxfrm-exec"] {
        let text = std::fs::read_to_string(path.join(format!("{name}.8"))).unwrap();
        assert!(text.contains(".TH"), "{name}");
    }
    let xfrm = std::fs::read_to_string(path.join("uxfrm-xfrm.8")).unwrap();
    for word in ["deleteall", "pcpu\\-num", "extra\\-flag", "hthresh6", "BATCH FILES"] {
        assert!(xfrm.contains(word), "{word}");
    }
    for (name, words) in [
        ("uxfrm-fou", &["peer_port", "ipproto", "RECEIVE PORTS"]),
        ("uxfrm-link", &["encap\\-sport", "6rd\\-prefix", "TUNNELS"]),
    ] {
        let text = std::fs::read_to_string(path.join(format!("{name}.8"))).unwrap();
        words.iter().for_each(|word| assert!(text.contains(word), "{word} in {name}(8)"));
    }
    assert!(uxfrm(&["man"]).out.contains("uxfrm\\-xfrm(8)"));
}
