//! What modprobe's configuration says of a module (modprobe.d(5)).

use std::collections::BTreeMap;

use crate::host::Host;

/// Where it is read, the first first: a file of one name is read only where it is found first.
const DIRECTORIES: &[&str] = &[
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
];

/// A line that keeps a module out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct BlockingLine {
    /// File and line: `/etc/modprobe.d/x.conf:3`.
    pub(super) place: String,
    pub(super) text: String,
    pub(super) kind: BlockKind,
}

/// What a line keeps from happening.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum BlockKind {
    /// `install MODULE /bin/false`: all loading.
    Install,
    /// `blacklist MODULE`, `alias … off`: loading by an alias, as the kernel asks for
    /// `xfrm-type-2-50`.
    Blacklist,
}

/// All lines that keep `module` out.
pub(super) fn blocking_lines(host: &Host, module: &str) -> Vec<BlockingLine> {
    let mut files = BTreeMap::new();
    for directory in DIRECTORIES {
        for name in host.names(directory).into_iter().filter(|name| name.ends_with(".conf")) {
            files.entry(name.clone()).or_insert_with(|| format!("{directory}/{name}"));
        }
    }
    let mut found = Vec::new();
    for path in files.into_values() {
        found.extend(lines_in(&path, &host.read(&path).unwrap_or_default(), module));
    }
    found.extend(kernel_command_line(&host.read("/proc/cmdline").unwrap_or_default(), module));
    found
}

fn lines_in(path: &str, text: &str, module: &str) -> Vec<BlockingLine> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words: Vec<_> = line.split_whitespace().collect();
        let kind = match *words.as_slice() {
            ["install", name, command, ..] if same(name, module) && refuses(command) => {
                BlockKind::Install
            }
            ["blacklist", name, ..] if same(name, module) => BlockKind::Blacklist,
            _ => continue,
        };
        let place = format!("{path}:{}", index + 1);
        found.push(BlockingLine { place, text: words.join(" "), kind });
    }
    found
}

/// Whether an install command does nothing but succeed or fail.
fn refuses(command: &str) -> bool {
    matches!(command.rsplit('/').next(), Some("false" | "true" | "nologin" | ":"))
}

fn kernel_command_line(text: &str, module: &str) -> Option<BlockingLine> {
    text.split_whitespace().find_map(|word| {
        let (key, names) = word.split_once('=')?;
        let kind = match key {
            "module_blacklist" => BlockKind::Install,
            "modprobe.blacklist" | "rd.driver.blacklist" => BlockKind::Blacklist,
            _other => return None,
        };
        let text = word.to_owned();
        let place = "/proc/cmdline".to_owned();
        names.split(',').any(|name| same(name, module)).then_some(BlockingLine {
            place,
            text,
            kind,
        })
    })
}

/// Modules' names have `-` and `_` alike.
fn same(name: &str, module: &str) -> bool {
    name.replace('-', "_") == module.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_keep_a_module_out() {
        for (line, kind) in [
            ("install esp4 /bin/false", Some(BlockKind::Install)),
            ("  install  esp4  /usr/bin/true # off", Some(BlockKind::Install)),
            ("blacklist esp4", Some(BlockKind::Blacklist)),
            ("# install esp4 /bin/false", None),
            ("install esp4 /sbin/modprobe --ignore-install esp4", None),
            ("install esp6 /bin/false", None),
            ("options esp4 x=1", None),
            ("", None),
        ] {
            let found = lines_in("/f", &format!("\n{line}\n"), "esp4");
            assert_eq!(found.first().map(|one| one.kind), kind, "{line}");
            assert!(found.iter().all(|one| one.place == "/f:2"));
        }
        assert_eq!(lines_in("/f", "blacklist ip-vti", "ip_vti").len(), 1);
    }

    #[test]
    fn kernel_command_line_blocks_too() {
        let found = kernel_command_line("quiet module_blacklist=ah4,esp4 ro", "esp4").unwrap();
        assert_eq!((found.kind, &*found.text), (BlockKind::Install, "module_blacklist=ah4,esp4"));
        assert_eq!(kernel_command_line("esp4 module_blacklist=esp6", "esp4"), None);
    }

    #[test]
    fn a_file_of_etc_hides_that_of_usr_with_its_name() {
        let root = tempfile::tempdir().unwrap();
        for (directory, text) in [("etc", "# nothing\n"), ("usr/lib", "install esp4 /bin/false\n")]
        {
            let directory = root.path().join(directory).join("modprobe.d");
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("esp.conf"), text).unwrap();
        }
        let host = Host::at(root.path());
        assert_eq!(blocking_lines(&host, "esp4"), []);
        std::fs::remove_file(root.path().join("etc/modprobe.d/esp.conf")).unwrap();
        assert_eq!(blocking_lines(&host, "esp4")[0].place, "/usr/lib/modprobe.d/esp.conf:1");
    }
}
