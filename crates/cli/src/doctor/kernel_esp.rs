//! Whether the kernel could do ESP itself. uxfrm does not need it; an IKE daemon that is not under
//! `uxfrm exec` does.

use std::path::Path;

use crate::host::Host;
use crate::ike_unit::{IkeDaemon, IkeUnit};

use super::finding::Finding;
use super::modprobe::{BlockKind, BlockingLine, blocking_lines};

const CHECK: &str = "kernel ESP";

/// The modules, for IPv4 and IPv6.
const MODULES: [&str; 2] = ["esp4", "esp6"];

/// What is known of one module.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Module {
    Builtin,
    Loaded,
    /// It is installed, and some lines may keep it out.
    Loadable(Vec<BlockingLine>),
    /// Lines keep it out, and whether it is installed is not known.
    Blocked(Vec<BlockingLine>),
    Absent,
}

/// Reads the state of both modules.
pub(super) fn check(host: &Host, units: &[IkeUnit]) -> Finding {
    let [v4, v6] = MODULES.map(|module| read(host, module));
    let waiting = units.iter().find(|unit| !unit.is_under_exec()).map(|unit| unit.daemon);
    judge(&v4, &v6, waiting)
}

fn read(host: &Host, module: &str) -> Module {
    let release = host.word("/proc/sys/kernel/osrelease").unwrap_or_default();
    let directory = Path::new("/lib/modules").join(release);
    let listed = |file: &str| {
        let text = host.read(directory.join(file)).unwrap_or_default();
        text.lines().any(|line| {
            let path = line.split(':').next().unwrap_or_default();
            path.rsplit('/').next().is_some_and(|name| name.split('.').next() == Some(module))
        })
    };
    if host.has(Path::new("/sys/module").join(module)) {
        return Module::Loaded;
    }
    if listed("modules.builtin") || !host.has(&directory) && is_linked(host, module) {
        return Module::Builtin;
    }
    let lines = blocking_lines(host, module);
    if listed("modules.dep") {
        Module::Loadable(lines)
    } else if lines.is_empty() {
        Module::Absent
    } else {
        Module::Blocked(lines)
    }
}

/// Whether the kernel itself has a function of the module: for kernels without a directory of
/// modules, as micro-VMs have.
fn is_linked(host: &Host, module: &str) -> bool {
    let function = format!("{module}_err");
    let symbols = host.read("/proc/kallsyms").unwrap_or_default();
    symbols.lines().any(|line| line.split_whitespace().nth(2) == Some(&function))
}

/// `waiting`: a daemon that would use the kernel's ESP.
fn judge(v4: &Module, v6: &Module, waiting: Option<IkeDaemon>) -> Finding {
    let works = |module: &Module| match module {
        Module::Builtin | Module::Loaded => true,
        Module::Loadable(lines) => lines.is_empty(),
        Module::Blocked(_) | Module::Absent => false,
    };
    let found = format!("esp4 {}, esp6 {}", describe(v4), describe(v6));
    match waiting {
        Some(daemon) if !works(v4) || !works(v6) => Finding::warn(
            CHECK,
            format!("{found}: {} has no ESP but uxfrm's", daemon.word()),
            &format!("uxfrm setup {}", daemon.word()),
        ),
        Some(_) | None => Finding::ok(CHECK, format!("{found}; uxfrm does without")),
    }
}

fn describe(module: &Module) -> String {
    match module {
        Module::Builtin => "built in".to_owned(),
        Module::Loaded => "loaded".to_owned(),
        Module::Loadable(lines) if lines.is_empty() => "not loaded".to_owned(),
        Module::Loadable(lines) | Module::Blocked(lines) => blocked(lines),
        Module::Absent => "absent".to_owned(),
    }
}

/// The line that decides: one that keeps all loading out, if there is one.
fn blocked(lines: &[BlockingLine]) -> String {
    let decisive = lines.iter().find(|line| line.kind == BlockKind::Install);
    decisive
        .or_else(|| lines.first())
        .map_or_else(String::new, |line| format!("blocked by `{}` in {}", line.text, line.place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Severity;

    fn line(kind: BlockKind) -> BlockingLine {
        let text = format!("{kind:?}");
        BlockingLine { place: "/etc/modprobe.d/cve.conf:2".to_owned(), text, kind }
    }

    #[test]
    fn blocked_or_absent_matters_to_a_daemon_that_is_not_under_exec() {
        let blocked = Module::Blocked(vec![line(BlockKind::Blacklist), line(BlockKind::Install)]);
        let daemon = Some(IkeDaemon::StrongSwan);
        for (module, waiting, severity) in [
            (&blocked, daemon, Severity::Warn),
            (&blocked, None, Severity::Ok),
            (&Module::Absent, daemon, Severity::Warn),
            (&Module::Loadable(Vec::new()), daemon, Severity::Ok),
            (&Module::Builtin, daemon, Severity::Ok),
        ] {
            assert_eq!(judge(module, &Module::Loaded, waiting).severity, severity, "{module:?}");
        }
        let found = judge(&blocked, &Module::Loaded, daemon);
        assert!(found.found.contains("`Install` in /etc/modprobe.d/cve.conf:2"), "{found}");
        assert_eq!(found.mend.unwrap(), "uxfrm setup strongswan");
    }

    #[test]
    fn module_is_read_from_the_files_of_its_kernel() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path());
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(read(&host, "esp4"), Module::Absent);
        write("proc/kallsyms", "0000000000000000 t esp4_err\n");
        assert_eq!(read(&host, "esp4"), Module::Builtin);
        assert_eq!(read(&host, "esp6"), Module::Absent);
        write("proc/sys/kernel/osrelease", "6.1.0\n");
        write("lib/modules/6.1.0/modules.dep", "kernel/net/ipv4/esp4.ko.xz: kernel/x.ko\n");
        write("lib/modules/6.1.0/modules.builtin", "kernel/net/ipv6/esp6.ko\n");
        assert_eq!(read(&host, "esp4"), Module::Loadable(Vec::new()));
        assert_eq!(read(&host, "esp6"), Module::Builtin);
        write("etc/modprobe.d/x.conf", "install esp4 /bin/false\n");
        assert!(matches!(read(&host, "esp4"), Module::Loadable(lines) if lines.len() == 1));
        write("sys/module/esp4/initstate", "live\n");
        assert_eq!(read(&host, "esp4"), Module::Loaded);
    }
}
