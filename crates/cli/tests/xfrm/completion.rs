//! Completion in a real bash, zsh and fish, and the manual's files.

use std::path::Path;
use std::process::Command;

use crate::programs::uxfrm;

const UXFRM: &str = env!("CARGO_BIN_EXE_uxfrm");

/// bash's completions at the end of a command line.
fn offered(line: &str) -> Option<Vec<String>> {
    let words: Vec<String> = line.split(' ').map(|word| format!("'{word}'")).collect();
    let script = format!(
        "source <('{UXFRM}' completions bash)\nCOMP_WORDS=({})\nCOMP_WORDS[0]='{UXFRM}'\nCOMP_CWORD={}\nCOMP_LINE='{line}'\n\
         COMP_POINT=${{#COMP_LINE}}\n_uxfrm_cli_grammar '{UXFRM}' \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" "),
        words.len() - 1,
    );
    said(Command::new("bash").args(["--norc", "-c", &script]), "bash")
}

/// The lines that a shell printed, with our `uxfrm` first in `PATH`; `None` without that shell.
fn said(shell: &mut Command, name: &str) -> Option<Vec<String>> {
    let ours = Path::new(UXFRM).parent().unwrap().display();
    let path = std::env::var("PATH").unwrap_or_default();
    let Ok(output) = shell.env("PATH", format!("{ours}:{path}")).output() else {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "not run: no {name}");
        eprintln!("not run: no {name} (apt-get install {name})");
        return None;
    };
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(str::to_owned).collect())
}

/// An interactive zsh in its own terminal, in which `$READY` loads our script: types each argument,
/// completes it, and prints the resulting line.
const ZSH: &str = r#"
zmodload zsh/zpty
lines=$(mktemp)
printed() { until (( $(wc -l <$lines) >= $1 )); do sleep 0.02; done }
zpty shell "env PS1= TERM=dumb zsh -f -i"
zpty -w shell "$READY"
zpty -w shell "told() { print -r -- \"\$BUFFER\" >>$lines; BUFFER=; }; zle -N told; bindkey '^X' told; print >>$lines"
printed 1
typed=1
for line in "$@"; do
    zpty -w -n shell "$line"$'\t\x18'
    printed $((++typed))
done
zpty -d shell
tail -n +2 $lines
rm $lines
"#;

#[test]
fn bash_completes_commands_and_grammar_words() {
    for (line, words) in [
        ("uxfrm xf", &["xfrm"][..]),
        ("uxfrm completions ba", &["bash"]),
        ("uxfrm xfrm ", &["help", "monitor", "policy", "sa", "save", "state", "sync"]),
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
fn zsh_completes_commands_and_grammar_words() {
    let lines = [
        ("uxfrm completions ba", "uxfrm completions bash "),
        ("uxfrm xfrm -s state al", "uxfrm xfrm -s state allocspi "),
        ("uxfrm xfrm state add aead rfc45", r"uxfrm xfrm state add aead rfc4543\(gcm\(aes\)\) "),
        ("uxfrm fou a", "uxfrm fou add "),
        ("uxfrm fou -j sh", "uxfrm fou -j show "),
        ("uxfrm fou add port 5555 ipproto g", "uxfrm fou add port 5555 ipproto gre "),
        ("uxfrm link add tun1 type gre encap g", "uxfrm link add tun1 type gre encap gue "),
        ("uxfrm link del l", "uxfrm link del lo "),
    ];
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("_uxfrm"), uxfrm(&["completions", "zsh"]).out).unwrap();
    let installed = format!(
        "fpath=({} $fpath); autoload -U compinit; compinit -u -D",
        directory.path().display()
    );
    // An installed script is loaded by the first completion, which must work too.
    for (ready, lines) in [
        ("autoload -U compinit; compinit -u -D; source <(uxfrm completions zsh)", &lines[..]),
        (&installed, &lines[1..]),
        (&installed, &lines[..1]),
    ] {
        let mut shell = Command::new("zsh");
        shell.args(["-f", "-c", ZSH, "zsh"]).args(lines.iter().map(|(typed, _)| typed));
        let Some(completed) = said(shell.env("READY", ready), "zsh") else { return };
        let wanted: Vec<_> = lines.iter().map(|(_, completed)| *completed).collect();
        assert_eq!(completed, wanted, "{ready}");
    }
}

#[test]
fn fish_completes_commands_and_grammar_words() {
    for (line, words) in [
        ("uxfrm fo", &["fou"][..]),
        ("uxfrm xfrm -s state al", &["allocspi"]),
        ("uxfrm xfrm state add aead rfc45", &["rfc4543(gcm(aes))"]),
        ("uxfrm fou ", &["add", "delete", "show"]),
        ("uxfrm fou -j sh", &["show"]),
        ("uxfrm fou add port 5555 ipproto g", &["gre"]),
        ("uxfrm link add tun1 type gre encap ", &["fou", "gue", "none"]),
        ("uxfrm link del l", &["lo"]),
    ] {
        let script = "source (uxfrm completions fish | psub); complete -C \"$argv[1]\"";
        let mut shell = Command::new("fish");
        let Some(offered) = said(shell.args(["--no-config", "-c", script, line]), "fish") else {
            return;
        };
        // A word's description follows a tab.
        let offered = offered.iter().map(|one| one.split('\t').next().unwrap());
        assert_eq!(offered.collect::<Vec<_>>(), words, "{line}");
    }
}

#[test]
fn each_completion_script_asks_for_the_grammar() {
    for shell in ["bash", "zsh", "fish"] {
        let outcome = uxfrm(&["completions", shell]);
        assert_eq!(outcome.code, Some(0));
        assert!(outcome.out.contains("complete-$"), "{shell}");
        assert!(outcome.out.contains("fou") && outcome.out.contains("link"), "{shell}");
        assert!(outcome.out.len() > 1000, "{shell}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
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
