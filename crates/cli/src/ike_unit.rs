//! The systemd units of IKE daemons: which are installed, and whether they start under
//! `uxfrm exec`.

use std::path::{Path, PathBuf};

use crate::host::Host;

/// Where systemd reads units, the first first.
pub(crate) const UNIT_DIRECTORIES: &[&str] = &[
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// The units that distributions have for IKE daemons.
const UNITS: &[&str] = &[
    "strongswan.service",
    "strongswan-starter.service",
    "strongswan-swanctl.service",
    "ipsec.service",
];

/// The IKE daemons that `uxfrm exec` is tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IkeDaemon {
    /// charon
    StrongSwan,
    /// pluto
    Libreswan,
}

impl IkeDaemon {
    /// The word of `uxfrm setup`.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::StrongSwan => "strongswan",
            Self::Libreswan => "libreswan",
        }
    }

    fn of_command(command: &str) -> Option<Self> {
        let is = |name: &str| command.split_whitespace().any(|word| word.ends_with(name));
        let starts = command.contains("ipsec start") || command.contains("strongswan start");
        if is("/pluto") {
            Some(Self::Libreswan)
        } else if is("/charon-systemd") || is("/charon") || is("/starter") || starts {
            Some(Self::StrongSwan)
        } else {
            None
        }
    }
}

/// A unit that starts an IKE daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IkeUnit {
    /// `strongswan.service`
    pub(crate) name: String,
    /// What it starts.
    pub(crate) daemon: IkeDaemon,
    /// Its commands, with all drop-ins.
    pub(crate) commands: Commands,
}

impl IkeUnit {
    /// Whether the gateway stands in the kernel's place.
    pub(crate) fn is_under_exec(&self) -> bool {
        is_under_exec(&self.commands.start)
    }
}

fn is_under_exec(command: &str) -> bool {
    command.contains("uxfrm exec ")
}

/// The commands of a unit's `[Service]` section, as systemd takes them together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Commands {
    /// `ExecStart=`
    pub(crate) start: String,
    /// `ExecStartPre=`
    pub(crate) before: Vec<String>,
    /// `ExecStopPost=`
    pub(crate) after_stop: Vec<String>,
}

/// All units of IKE daemons that are installed, without the drop-in `ignored` of each.
pub(crate) fn installed(host: &Host, ignored: Option<&str>) -> Vec<IkeUnit> {
    UNITS.iter().filter_map(|name| unit(host, name, ignored)).collect()
}

fn unit(host: &Host, name: &str, ignored: Option<&str>) -> Option<IkeUnit> {
    let files = UNIT_DIRECTORIES.iter().map(|directory| Path::new(directory).join(name));
    let file = files.into_iter().find(|file| host.path(file).symlink_metadata().is_ok())?;
    if host.path(&file).is_symlink() {
        return None; // an alias of another, or masked
    }
    let mut commands = Commands::default();
    for part in std::iter::once(file).chain(drop_ins(host, name, ignored)) {
        commands.apply(&host.read(part)?);
    }
    let daemon = IkeDaemon::of_command(&commands.start)?;
    Some(IkeUnit { name: name.to_owned(), daemon, commands })
}

/// The drop-ins of a unit, by name as systemd reads them: of two with one name the first
/// directory's.
fn drop_ins(host: &Host, unit: &str, ignored: Option<&str>) -> Vec<PathBuf> {
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    for directory in UNIT_DIRECTORIES {
        let directory = Path::new(directory).join(format!("{unit}.d"));
        for name in host.names(&directory).into_iter().filter(|name| name.ends_with(".conf")) {
            if ignored != Some(name.as_str()) && found.iter().all(|(known, _)| *known != name) {
                let path = directory.join(&name);
                found.push((name, path));
            }
        }
    }
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

impl Commands {
    /// Reads one more file: commands are added, and an empty one clears those before.
    fn apply(&mut self, text: &str) {
        for line in logical_lines(text) {
            let Some((key, value)) = line.split_once('=') else { continue };
            let value = value.trim();
            match key.trim() {
                "ExecStart" => value.clone_into(&mut self.start),
                "ExecStartPre" => add(&mut self.before, value),
                "ExecStopPost" => add(&mut self.after_stop, value),
                _other => {}
            }
        }
    }
}

fn add(commands: &mut Vec<String>, value: &str) {
    if value.is_empty() {
        commands.clear();
    } else {
        commands.push(value.to_owned());
    }
}

/// The lines of a unit file, those that end in a backslash joined with the next, without comments.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open = String::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with(['#', ';'])) {
        match line.strip_suffix('\\') {
            Some(part) => open += &format!("{part} "),
            None => lines.push(std::mem::take(&mut open) + line),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let host = Host::at(root.path());
        (root, host)
    }

    #[test]
    fn units_are_told_by_what_they_start() {
        let (_root, host) = host(&[
            (
                "/lib/systemd/system/strongswan.service",
                "[Service]\nExecStart=/usr/sbin/charon-systemd\n",
            ),
            (
                "/lib/systemd/system/strongswan-starter.service",
                "ExecStart=/usr/sbin/ipsec start --nofork\n",
            ),
            (
                "/usr/lib/systemd/system/ipsec.service",
                "ExecStart=/usr/libexec/ipsec/pluto \\\n  --nofork\n",
            ),
        ]);
        let found = installed(&host, None);
        let told: Vec<_> = found.iter().map(|unit| (&*unit.name, unit.daemon)).collect();
        assert_eq!(
            told,
            [
                ("strongswan.service", IkeDaemon::StrongSwan),
                ("strongswan-starter.service", IkeDaemon::StrongSwan),
                ("ipsec.service", IkeDaemon::Libreswan),
            ]
        );
        assert!(found[2].commands.start.ends_with("--nofork"));
        assert!(found.iter().all(|unit| !unit.is_under_exec()));
    }

    #[test]
    fn drop_ins_are_read_in_their_order_and_ours_can_be_left_out() {
        let (_root, host) = host(&[
            ("/lib/systemd/system/ipsec.service", "ExecStartPre=/a\nExecStart=/x/pluto --one\n"),
            (
                "/etc/systemd/system/ipsec.service.d/override.conf",
                "ExecStart=\nExecStart=/x/pluto --two\n",
            ),
            (
                "/etc/systemd/system/ipsec.service.d/uxfrm.conf",
                "ExecStart=\nExecStart=/usr/bin/uxfrm exec -- /x/pluto\n",
            ),
        ]);
        assert!(installed(&host, None)[0].is_under_exec());
        let without = &installed(&host, Some("uxfrm.conf"))[0];
        assert_eq!(without.commands.start, "/x/pluto --two");
        assert_eq!(without.commands.before, ["/a"]);
    }

    #[test]
    fn other_daemons_and_masked_units_are_none() {
        let (root, host) =
            host(&[("/lib/systemd/system/ipsec.service", "ExecStart=/usr/bin/true\n")]);
        fs::create_dir_all(root.path().join("etc/systemd/system")).unwrap();
        std::os::unix::fs::symlink(
            "/dev/null",
            root.path().join("etc/systemd/system/strongswan.service"),
        )
        .unwrap();
        assert_eq!(installed(&host, None), []);
    }
}
