//! The command line, as clap reads it. The doc comments here are the text of `uxfrm --help`.

mod inspection;
mod packets;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, builder::PossibleValuesParser};
use uxfrm_bench::CaseFilter;
use uxfrm_fleet_options::FleetOptions;
use uxfrm_web_options::WebOptions;

pub(crate) use self::inspection::{
    DropOwner, DropsOptions, NamespaceOptions, ProbeOptions, StatOptions, StatusOptions,
    TopOptions, WhyOptions,
};
pub(crate) use self::packets::{CaptureOptions, PacketFilterOptions, TraceOptions};
use crate::demo_case::CaseName;

/// The Linux XFRM stack in user space: an IPsec gateway with the kernel's model and names.
#[derive(Debug, Parser)]
#[command(name = "uxfrm", version, propagate_version = true)]
pub(crate) struct Arguments {
    /// As the process that a supervisor of this number has started.
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) under_supervisor: Option<u32>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Tell what of this host is in the way of uxfrm, and the command that mends it.
    ///
    /// A line for each check. Changes nothing. Exit code: 0 all is well, 1 there are warnings, 2
    /// something keeps uxfrm from working.
    Doctor(DoctorOptions),
    /// Put an IKE daemon on uxfrm, or write a tunnel with static keys; `--undo` takes it back.
    ///
    /// The daemon's systemd unit starts it under `uxfrm exec` then, behind uxfrm.service. Each
    /// thing that is done is said, and recorded in /etc/uxfrm/setup.json. A file that setup did not
    /// write is never overwritten.
    Setup(SetupOptions),
    /// Run the gateway in the foreground; SIGTERM ends it.
    ///
    /// What is protected is refused from then on, unless `[host] at_exit` is "open". SIGINT does
    /// the same. SIGHUP is `uxfrm reload`, told in the log. While the gateway runs, states and
    /// policies also change by `uxfrm xfrm`, many at once by `uxfrm xfrm -batch FILE` or
    /// `uxfrm xfrm sync FILE`, tunnels by `uxfrm link` and `uxfrm fou`, devices by `uxfrm dev`.
    Run(RunOptions),
    /// Read a configuration and its batch files and report every error in them.
    Check(CheckOptions),
    /// Have the running gateway read its configuration and batch files again, and carry out only
    /// what is different.
    ///
    /// States, policies, tunnels and receive ports that the files said before and say no more go;
    /// what others have put in stays. A state whose line is the same goes on with its numbers.
    /// States and policies change at once or, where one is refused, not at all. Of the other keys
    /// `[host] at_exit` and `[control] acquire_expires` are followed; what waits for the next start
    /// is shown with `!`.
    Reload(ReloadOptions),
    /// Have another uxfrm, mostly a newer release, take the place of the running gateway, without
    /// losing a packet.
    ///
    /// States, policies, sockets and the connections of IKE daemons pass to it. Where it does not
    /// come up, the one that runs goes on as it was.
    Upgrade(UpgradeOptions),
    /// Refuse what the last run protected, without a gateway: for a unit that comes before the
    /// network.
    ///
    /// Puts up the guard and unreachable routes for the policies of batch files and for those that
    /// programs, as an IKE daemon, had put in when the last run ended. `uxfrm run` takes them over,
    /// `uxfrm clean` removes them. What is not covered is said.
    Guard(GuardOptions),
    /// Let go of what is held from the last run: what programs' policies protected and no policy
    /// has come for since.
    ///
    /// It leaves plain where no policy protects it. One alone goes by `uxfrm xfrm policy delete`.
    Release(ReleaseOptions),
    /// Remove what a gateway that has ended left: routes that refuse what it protected, and its
    /// guard.
    Clean(CleanOptions),
    /// Print the running gateway's tunnels: which are up, which are not and why.
    ///
    /// Three lines a tunnel: what it is, how it is and what it carried, and when its states end.
    /// A tunnel is `up`; `idle` without a packet for two minutes; `one-way` when it sent for 30 s
    /// and received nothing, or when nearly all that it received was dropped here; `down` when no
    /// state takes what it sends, or nothing can come in. Exit code: 0 all are up or idle, 1
    /// something is not, 2 no gateway answers.
    Status(StatusOptions),
    /// Show what the running gateway does, live: tunnels, workers, ports, devices, drops, caches.
    ///
    /// Keys are those of top and htop: digits or Tab for views, arrows for rows, `s` to sort, `/`
    /// to filter, space to pause, `?` for help, `q` to quit. It goes on where the gateway is
    /// replaced. `--once` prints one frame, for scripts.
    Top(TopOptions),
    /// Print the running gateway's counters in the format of /proc/net/xfrm_stat.
    Stat(StatOptions),
    /// Print packets that the running gateway dropped: whose they were, why, and what to do.
    ///
    /// A line each, of the last 1,024 that left a record: of many of one kind only some do, and say
    /// how many they stand for. What a reason means follows its first record. `uxfrm stat
    /// --reasons` counts all.
    Drops(DropsOptions),
    /// Explain what a packet would meet, and why: route, policy, state, size, way out.
    ///
    /// What nearly fits is told with its difference. `dir in` asks about a packet that comes in,
    /// plain or, with `spi`, in ESP. Exit code: 0 it leaves in ESP or comes in, 1 it is dropped,
    /// waits or leaves plain, 2 no gateway answers.
    Why(WhyOptions),
    /// Capture packets of the running gateway: of the plain side, the wire side, or dropped ones.
    ///
    /// Each packet has a comment: verdict, drop reason, policy, state, SPI. Without `--write` a
    /// line a packet is printed. `uxfrm capture -w - | tshark -r -` shows them at once, and with
    /// `--keys` Wireshark decrypts the wire side. Without `--plain`, `--wire` or `--drops` all
    /// three are captured. For root and the gateway's own user: packets are users' data.
    Capture(CaptureOptions),
    /// Trace the next packets through the running gateway: what each stage has decided.
    ///
    /// Policies, flow cache, bundle, states, numbers, path, what left or why it was dropped, of the
    /// real packet. Ends once so many packets were traced.
    Trace(TraceOptions),
    /// Find the largest packet that really passes a tunnel, by pings without fragmentation.
    ///
    /// Exit code: 0 packets pass as large as uxfrm takes them for; 1 only smaller ones do, as a
    /// router drops larger ones without a word, or none is answered, or pings would leave plain; 2
    /// no gateway answers.
    Probe(ProbeOptions),
    /// Serve what the running gateway tells about itself by HTTP: for programs, Prometheus, a
    /// browser.
    ///
    /// It can read and nothing else, and needs no privilege: the gateway answers members of
    /// `[status] group`. Without options it listens on a Unix socket. `/api/v1/openapi.json`
    /// describes what may be asked.
    Web(WebOptions),
    /// Run many gateways from one desired state in etcd: their tunnels, who has which, failover.
    ///
    /// etcd (v3) holds the state, sealed under the fleet's key. The agent of each gateway
    /// (`uxfrm fleet run`) tells it which tunnels it has.
    Fleet(FleetOptions),
    /// List and change states and policies, as `ip xfrm` does; watch events; save and sync.
    ///
    /// `uxfrm xfrm save` prints all of them as lines, and `uxfrm xfrm sync FILE` makes them what
    /// such lines say, by the fewest changes.
    Xfrm(XfrmOptions),
    /// List, add and delete FOU and GUE receive ports, as `ip fou` does.
    Fou(FouOptions),
    /// List, add, change and delete tunnels, as `ip link` does for ipip, sit, gre, ip6tnl and
    /// ip6gre.
    Link(LinkOptions),
    /// Add, delete, show and set offload devices: model network cards that do IPsec; flow rules in
    /// ethtool's words; their events.
    Dev(DevOptions),
    /// Run an unmodified XFRM program (ip, an IKE daemon) with the gateway in the kernel's place.
    Exec(ExecOptions),
    /// Show two gateways in network namespaces carrying real traffic; needs no set-up.
    Demo(DemoOptions),
    /// Measure on this machine.
    Bench(BenchOptions),
    /// Print the completion script of a shell.
    Completions(CompletionsOptions),
    /// Print uxfrm(8), or write all manual pages into a directory.
    Man(ManOptions),
    /// What may come next behind `uxfrm xfrm`: for the completion scripts.
    #[command(hide = true)]
    CompleteXfrm(XfrmOptions),
    /// What may come next behind `uxfrm fou`.
    #[command(hide = true)]
    CompleteFou(FouOptions),
    /// What may come next behind `uxfrm link`.
    #[command(hide = true)]
    CompleteLink(LinkOptions),
    /// What may come next behind `uxfrm dev`.
    #[command(hide = true)]
    CompleteDev(DevOptions),
}

/// Options of `uxfrm doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorOptions {
    /// Print one JSON object instead.
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Options of `uxfrm setup`.
#[derive(Args, Debug)]
pub(crate) struct SetupOptions {
    /// What to set up.
    #[arg(required_unless_present = "undo")]
    pub(crate) kind: Option<SetupKind>,

    /// Take back all that setup did.
    #[arg(long, conflicts_with = "kind")]
    pub(crate) undo: bool,

    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Work on the host whose files are below this directory; no command is run there.
    #[arg(long, value_name = "DIRECTORY", default_value = "/")]
    pub(crate) root: PathBuf,

    /// static: this end's address, which ESP is sent from.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) local: Option<IpAddr>,

    /// static: the peer's address.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) peer: Option<IpAddr>,

    /// static: the net behind this end, as in 10.1.0.0/24.
    #[arg(long, value_name = "NET")]
    pub(crate) local_net: Option<String>,

    /// static: the net behind the peer.
    #[arg(long, value_name = "NET")]
    pub(crate) peer_net: Option<String>,
}

/// What `uxfrm setup` can set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SetupKind {
    /// strongSwan: charon under `uxfrm exec`
    Strongswan,
    /// libreswan: pluto under `uxfrm exec`
    Libreswan,
    /// a tunnel with fresh static keys, the files for both ends
    Static,
}

/// Options of `uxfrm run`.
#[derive(Args, Debug)]
pub(crate) struct RunOptions {
    /// The configuration (TOML).
    pub(crate) config: PathBuf,

    /// End as on SIGTERM when standard input ends: a parent that dies leaves no gateway behind.
    #[arg(long)]
    pub(crate) until_stdin_ends: bool,

    /// How the log is written; text if nothing is said. RUST_LOG sets its level: error, warn, info
    /// (the default), debug or trace.
    #[arg(long, value_name = "FORM", env = "UXFRM_LOG")]
    pub(crate) log: Option<LogFormat>,
}

/// Forms of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line for a person, on stderr
    Text,
    /// A JSON object a line, on stderr
    Json,
    /// Entries with fields, in the journal: for `journalctl`
    Journald,
}

impl LogFormat {
    /// Its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Journald => "journald",
        }
    }
}

/// Options of `uxfrm upgrade`.
#[derive(Args, Debug)]
pub(crate) struct UpgradeOptions {
    /// The program that takes over; without, the file that the running one was started from. It
    /// must be root's, and no other may write to it.
    pub(crate) binary: Option<PathBuf>,

    /// The gateway's control socket, where it has a path (`[control] socket`).
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
}

/// Options of `uxfrm check`.
#[derive(Args, Debug)]
pub(crate) struct CheckOptions {
    /// The configuration (TOML).
    pub(crate) config: PathBuf,
}

/// Options of `uxfrm reload`.
#[derive(Args, Debug)]
pub(crate) struct ReloadOptions {
    /// Show what would be done, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// The gateway's control socket, where it has a path (`[control] socket`).
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
}

/// Options of `uxfrm guard`.
#[derive(Args, Debug)]
pub(crate) struct GuardOptions {
    /// The configuration (TOML) that `uxfrm run` will be given.
    pub(crate) config: PathBuf,
}

/// Options of `uxfrm release`.
#[derive(Args, Debug)]
pub(crate) struct ReleaseOptions {
    /// The gateway's control socket, where it has a path (`[control] socket`).
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
}

/// Options of `uxfrm clean`.
#[derive(Args, Debug)]
pub(crate) struct CleanOptions {
    /// A configuration (TOML), whose next start is to hold nothing of the last run.
    pub(crate) config: Option<PathBuf>,
}

/// Options of `uxfrm xfrm`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct XfrmOptions {
    /// What `ip xfrm` takes, with the options of `ip` (-s, -d, -o, -j, -4, -6, -batch FILE …)
    /// before it.
    #[arg(value_name = "WORDS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<String>,
}

/// Options of `uxfrm fou`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct FouOptions {
    /// What `ip fou` takes, with the options of `ip` (-s, -j, -6, -batch FILE …) before it.
    #[arg(value_name = "WORDS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<String>,
}

/// Options of `uxfrm link`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct LinkOptions {
    /// What `ip link` takes about tunnels, with the options of `ip` (-s, -o, -j, -batch FILE …)
    /// before it.
    #[arg(value_name = "WORDS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<String>,
}

/// Options of `uxfrm dev`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct DevOptions {
    /// A command, with -json, -pretty, -netns NAME or -control PATH before it.
    #[arg(value_name = "WORDS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<String>,
}

/// Options of `uxfrm completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsOptions {
    /// Which shell.
    pub(crate) shell: Shell,
}

/// The shells that there is a completion script for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// GNU bash
    Bash,
    /// Z shell
    Zsh,
    /// fish
    Fish,
}

/// Options of `uxfrm man`.
#[derive(Args, Debug)]
pub(crate) struct ManOptions {
    /// Where the pages go, one for each command; it is made if it is not there.
    pub(crate) directory: Option<PathBuf>,
}

/// Options of `uxfrm exec`.
#[derive(Args, Debug)]
pub(crate) struct ExecOptions {
    /// The gateway's control socket, where it has a path (`[control] socket`).
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,

    /// The command and its arguments; its exit code is this command's.
    #[arg(
        value_name = "CMD",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) command: Vec<OsString>,
}

/// Options of `uxfrm demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoOptions {
    /// Print one JSON object at the end and nothing else.
    #[arg(long)]
    pub(crate) json: bool,

    /// Seconds that each TCP stream is measured.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,

    /// Only these cases (`clear` always runs: the others are compared with it).
    #[arg(long, value_name = "CASE,…", value_delimiter = ',')]
    pub(crate) only: Vec<CaseName>,
}

/// Options of `uxfrm bench`.
#[derive(Args, Debug)]
pub(crate) struct BenchOptions {
    /// Which bench.
    #[arg(value_parser = PossibleValuesParser::new(uxfrm_bench::names()))]
    pub(crate) name: String,

    /// Only the rows whose case has these values, as in `transform=gcm128,bytes=64`.
    #[arg(long, value_name = "KEY=VALUE,…", default_value_t)]
    pub(crate) only: CaseFilter,

    /// Write the rows as one JSON object to this file (`-`: standard output).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Draw the rows into this file; only their curves, if its name ends in .svg.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Prove that the bench works, in little time; the figures mean nothing.
    #[arg(long)]
    pub(crate) quick: bool,

    /// lookup: take the policies from this file of ClassBench's format.
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,

    /// lookup: take the packets for them from this file.
    #[arg(long, value_name = "FILE", requires = "rules")]
    pub(crate) trace: Option<PathBuf>,

    /// tunnel, fou, control (files): take so many rounds and not five, fifteen or eleven.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,

    /// tunnel: let iperf3 run for so long at a time and not for three seconds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: Option<u32>,

    /// esp: show the cycles of each stage as well.
    #[arg(long)]
    pub(crate) stages: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Arguments::try_parse_from(line.split(' ')).map(|arguments| arguments.command)
    }

    #[test]
    fn clap_definition_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn bench_filter_is_parsed_as_pairs() {
        let Ok(Command::Bench(options)) = parse("uxfrm bench crypto --only op=seal,bytes=64")
        else {
            panic!("not a bench");
        };
        assert_eq!(options.only.to_string(), "op=seal,bytes=64");
        assert!(parse("uxfrm bench crypto --only seal").is_err());
    }

    #[test]
    fn exec_keeps_options_of_its_command() {
        for line in ["uxfrm exec -- ip -s xfrm", "uxfrm exec ip -s xfrm"] {
            let Ok(Command::Exec(options)) = parse(line) else { panic!("not an exec") };
            assert_eq!(options.command, ["ip", "-s", "xfrm"]);
        }
        assert!(parse("uxfrm exec").is_err());
    }

    #[test]
    fn all_words_after_xfrm_are_kept() {
        for line in ["uxfrm xfrm -s state --help", "uxfrm xfrm -batch -", "uxfrm xfrm"] {
            let Ok(Command::Xfrm(options)) = parse(line) else { panic!("not an xfrm") };
            let words = line.split(' ').skip(2);
            assert!(options.words.iter().map(String::as_str).eq(words), "{line}");
        }
    }

    #[test]
    fn all_words_after_fou_link_and_dev_are_kept() {
        let Ok(Command::Fou(options)) = parse("uxfrm fou -s show --help") else {
            panic!("not a fou")
        };
        assert_eq!(options.words, ["-s", "show", "--help"]);
        let line = "uxfrm link add t type gre key 5 --help";
        let Ok(Command::Link(options)) = parse(line) else { panic!("not a link") };
        assert_eq!(options.words.len(), 7);
        let line = "uxfrm dev flow nic0 -U flow-type ip4 --help";
        let Ok(Command::Dev(options)) = parse(line) else { panic!("not a dev") };
        assert_eq!(options.words.len(), 6);
    }

    #[test]
    fn demo_takes_known_cases_and_seconds() {
        let Ok(Command::Demo(options)) = parse("uxfrm demo --seconds 1 --only gcm128-udp,clear")
        else {
            panic!("not a demo");
        };
        assert_eq!(options.seconds, 1);
        assert_eq!(options.only, [CaseName::Gcm128Udp, CaseName::Clear]);
        for wrong in ["uxfrm demo --seconds 0", "uxfrm demo --only rot13", "uxfrm demo -x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
