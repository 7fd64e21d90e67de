//! The plan for an IKE daemon: its unit starts it under `uxfrm exec`, behind `uxfrm.service`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::host::Host;
use crate::ike_unit::{self, IkeDaemon, IkeUnit, UNIT_DIRECTORIES};

use super::plan::{Access, GatewayStart, Plan, Step};
use super::{CONFIG, app_armor, program};

/// The name of our drop-ins.
const DROP_IN: &str = "uxfrm.conf";

const GATEWAY_UNIT: &str = "uxfrm.service";

/// Words of commands that load the kernel's IPsec or change it. Where it is blocked they fail.
const KERNEL_COMMANDS: &[&str] = &["_stackmanager", "--checknflog", "--stopnflog", "ip xfrm"];

/// Makes the plan.
///
/// # Errors
/// When the daemon or `uxfrm.service` is not installed.
pub(super) fn plan(host: &Host, daemon: IkeDaemon) -> anyhow::Result<Plan> {
    let installed = ike_unit::installed(host, Some(DROP_IN));
    let units: Vec<_> = installed.into_iter().filter(|unit| unit.daemon == daemon).collect();
    if units.is_empty() {
        bail!("{}", not_installed(daemon));
    }
    let gateway = gateway_unit(host)?;
    let program = program::path(host)?;
    let mut plan = Plan { gateway: GatewayStart::Now, ..Plan::default() };
    plan.steps.push(Step::file(CONFIG, configuration(daemon), Access::Gateway));
    for unit in &units {
        let path = format!("/etc/systemd/system/{}.d/{DROP_IN}", unit.name);
        plan.steps.push(Step::file(&path, drop_in(unit, &program), Access::All));
        plan.units.push(unit.name.clone());
    }
    match daemon {
        IkeDaemon::StrongSwan => plan.notes.extend(lost_routes(host)),
        IkeDaemon::Libreswan => extend_libreswan(&mut plan, host),
    }
    app_armor::extend(&mut plan, host, daemon);
    let wanted = PathBuf::from("/etc/systemd/system/multi-user.target.wants").join(GATEWAY_UNIT);
    plan.steps.push(Step::Link { path: wanted, target: gateway });
    Ok(plan)
}

fn not_installed(daemon: IkeDaemon) -> &'static str {
    match daemon {
        IkeDaemon::StrongSwan => {
            "no systemd unit of strongSwan is here: install it first (Debian: apt install charon-systemd)"
        }
        IkeDaemon::Libreswan => {
            "no systemd unit of libreswan is here: install it first (Debian: apt install libreswan)"
        }
    }
}

fn gateway_unit(host: &Host) -> anyhow::Result<PathBuf> {
    let places = UNIT_DIRECTORIES.iter().map(|directory| Path::new(directory).join(GATEWAY_UNIT));
    places.into_iter().find(|place| host.has(place)).context(
        "uxfrm.service is not installed: the packages bring it, or copy examples/systemd to /etc/systemd/system",
    )
}

fn configuration(daemon: IkeDaemon) -> String {
    format!(
        "# Written by `uxfrm setup {}`; `uxfrm setup --undo` removes it. All keys: uxfrm.toml.example.\n\
         # States and policies come from the IKE daemon, through the control socket.\n\
         [control]\n\
         enabled = true\n",
        daemon.word()
    )
}

/// The daemon ends and starts with the gateway, after a crash too: its states and traps are gone
/// then, and it installs them anew (docs/ike.md).
fn drop_in(unit: &IkeUnit, program: &Path) -> String {
    let commands = &unit.commands;
    let mut text = format!(
        "# Written by `uxfrm setup {}`; `uxfrm setup --undo` removes it.\n\
         [Unit]\n\
         Requires={GATEWAY_UNIT}\n\
         After={GATEWAY_UNIT}\n\
         \n\
         [Service]\n\
         ExecStart=\n\
         ExecStart={}\n",
        unit.daemon.word(),
        under_exec(&commands.start, program)
    );
    text += &without_kernel_commands("ExecStartPre", &commands.before);
    text += &without_kernel_commands("ExecStopPost", &commands.after_stop);
    text
}

/// A command of `ExecStart=` under `uxfrm exec`. Its special prefixes stay in front, but `@`: the
/// word behind the program is its name for itself then, which `uxfrm exec` gives nobody.
fn under_exec(command: &str, program: &Path) -> String {
    let bare = command.trim_start_matches(['-', '@', ':', '+', '!', '|']);
    let prefixes = &command[..command.len() - bare.len()];
    let bare = match (prefixes.contains('@'), bare.split_once(' ')) {
        (true, Some((daemon, rest))) => {
            let arguments =
                rest.trim_start().split_once(' ').map_or("", |(_, arguments)| arguments);
            format!("{daemon} {arguments}").trim_end().to_owned()
        }
        (true, None) | (false, _) => bare.to_owned(),
    };
    format!("{}{} exec -- {bare}", prefixes.replace('@', ""), program.display())
}

/// Lines that set a list of commands anew, where some of it is left out.
fn without_kernel_commands(key: &str, commands: &[String]) -> String {
    let is_kernels = |command: &&String| KERNEL_COMMANDS.iter().any(|word| command.contains(word));
    if !commands.iter().any(|command| is_kernels(&command)) {
        return String::new();
    }
    let kept = commands.iter().filter(|command| !is_kernels(command));
    std::iter::once(format!("{key}=\n"))
        .chain(kept.map(|command| format!("{key}={command}\n")))
        .collect()
}

/// pluto's updown script sets routes of the kernel's IPsec.
fn extend_libreswan(plan: &mut Plan, host: &Host) {
    let text = "# Written by `uxfrm setup libreswan`; `uxfrm setup --undo` removes it.\n\
                # uxfrm leads packets to itself: pluto's script would set the kernel's routes.\n\
                conn %default\n    leftupdown=/bin/true\n    rightupdown=/bin/true\n";
    plan.steps.push(Step::file("/etc/ipsec.d/uxfrm.conf", text, Access::All));
    let main = host.read("/etc/ipsec.conf").unwrap_or_default();
    let is_included = |line: &str| line.trim().starts_with("include /etc/ipsec.d/*.conf");
    if !main.lines().any(is_included) {
        plan.notes.push("/etc/ipsec.conf needs the line `include /etc/ipsec.d/*.conf`".to_owned());
    }
}

/// Where charon's configuration turns its routes off: what road warriors send from unbound sockets
/// would leave plain.
fn lost_routes(host: &Host) -> Vec<String> {
    let mut files = vec![PathBuf::from("/etc/strongswan.conf")];
    for directory in ["/etc/strongswan.d", "/etc/strongswan.d/charon"] {
        let names = host.names(directory).into_iter().filter(|name| name.ends_with(".conf"));
        files.extend(names.map(|name| Path::new(directory).join(name)));
    }
    files
        .iter()
        .flat_map(|file| lost_routes_in(file, &host.read(file).unwrap_or_default()))
        .collect()
}

fn lost_routes_in(file: &Path, text: &str) -> Vec<String> {
    let turns_off = |line: &str| {
        let line = line.split('#').next().unwrap_or_default();
        line.split_once('=').is_some_and(|(key, value)| {
            key.trim().ends_with("install_routes") && ["no", "0", "false"].contains(&value.trim())
        })
    };
    let lines = text.lines().enumerate().filter(|(_, line)| turns_off(line));
    lines
        .map(|(number, _)| {
            format!(
                "{}:{}: take out `install_routes = no`: with it, what a road warrior's unbound sockets send leaves plain",
                file.display(),
                number + 1
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ike_unit::Commands;

    fn unit(commands: Commands) -> IkeUnit {
        IkeUnit { name: "ipsec.service".to_owned(), daemon: IkeDaemon::Libreswan, commands }
    }

    #[test]
    fn command_goes_under_exec_with_its_prefixes_in_front() {
        let program = Path::new("/usr/bin/uxfrm");
        for (command, expected) in [
            ("/usr/sbin/charon-systemd", "/usr/bin/uxfrm exec -- /usr/sbin/charon-systemd"),
            ("-!/x/pluto --nofork", "-!/usr/bin/uxfrm exec -- /x/pluto --nofork"),
            ("@/x/pluto pluto --nofork", "/usr/bin/uxfrm exec -- /x/pluto --nofork"),
            ("-@/x/pluto ipsec", "-/usr/bin/uxfrm exec -- /x/pluto"),
        ] {
            assert_eq!(under_exec(command, program), expected);
        }
    }

    #[test]
    fn commands_that_need_the_kernels_ipsec_are_left_out() {
        let commands = Commands {
            start: "/x/pluto".to_owned(),
            before: ["/x/addconn --checkconfig", "/x/_stackmanager start", "ipsec --checknss"]
                .map(str::to_owned)
                .to_vec(),
            after_stop: vec!["/bin/bash -c 'ip xfrm policy flush'".to_owned()],
        };
        let text = drop_in(&unit(commands), Path::new("/usr/bin/uxfrm"));
        assert!(text.ends_with(
            "ExecStartPre=\nExecStartPre=/x/addconn --checkconfig\nExecStartPre=ipsec --checknss\nExecStopPost=\n"
        ));
        let commands = Commands { before: vec!["/bin/true".to_owned()], ..Commands::default() };
        assert!(!drop_in(&unit(commands), Path::new("/u")).contains("ExecStartPre"));
    }

    #[test]
    fn install_routes_is_found_only_where_it_is_off() {
        let text = "charon {\n  # install_routes = no\n  install_routes = no # why\n}\n";
        let found = lost_routes_in(Path::new("/etc/strongswan.conf"), text);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("/etc/strongswan.conf:3: "));
        assert_eq!(lost_routes_in(Path::new("/x"), "install_routes = yes\n"), Vec::<String>::new());
    }
}
