//! WireGuard in user space: programs that make a TUN and are configured through a socket
//! (<https://www.wireguard.com/xplatform/#configuration-protocol>).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use uxfrm_io::Namespace;

use super::process::PeerProcess;
use crate::cases::tunnel::route;
use crate::pair::{A, B, GatewaySite, Interrupt, PREFIX_LEN, Topology};

pub(super) const GO: &str = "wireguard-go";
pub(super) const BORINGTUN: &str = "boringtun-cli";
pub(super) const GOTATUN: &str = "gotatun";

/// The TUN's name at either end.
const TUN: &str = "wg0";

/// The MTU that wg-quick sets on a wire of 1500 bytes.
const MTU: u32 = 1420;

const PORT: u16 = 51820;

/// How long a program may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// One end's X25519 keys, made up for this bench and not secret.
struct KeyPair {
    private: &'static str,
    public: &'static str,
}

const KEYS_OF_A: KeyPair = KeyPair {
    private: "1011111111111111111111111111111111111111111111111111111111111151",
    public: "7b4e909bbe7ffe44c465a220037d608ee35897d31ef972f07f74892cb0f73f13",
};
const KEYS_OF_B: KeyPair = KeyPair {
    private: "2022222222222222222222222222222222222222222222222222222222222262",
    public: "0faa684ed28867b97f4a6a2dee5df8ce974e76b7018e3f22a1c4cf2678570f20",
};

/// Starts `program` at both ends.
pub(super) fn start(
    program: &str,
    topology: &Topology,
    interrupt: &Interrupt,
) -> anyhow::Result<[PeerProcess; 2]> {
    let end =
        |namespace: &Namespace, (here, own), (there, others)| -> anyhow::Result<PeerProcess> {
            let configuration = configuration((own, others), there);
            let process = start_end(program, namespace, &configuration, interrupt)?;
            namespace.enter(|| route::add_through(TUN, MTU, (here, there)))??;
            Ok(process)
        };
    Ok([
        end(&topology.a, (&A, &KEYS_OF_A), (&B, &KEYS_OF_B))?,
        end(&topology.b, (&B, &KEYS_OF_B), (&A, &KEYS_OF_A))?,
    ])
}

fn start_end(
    program: &str,
    namespace: &Namespace,
    configuration: &str,
    interrupt: &Interrupt,
) -> anyhow::Result<PeerProcess> {
    // In the foreground, errors only, and without dropping privileges. Of boringtun-cli 0.7,
    // `WG_SUDO` is a flag of clap 4, which takes no other values than `true` and `false`.
    let environment = [
        ("WG_PROCESS_FOREGROUND", "1"),
        ("LOG_LEVEL", "error"),
        ("WG_LOG_LEVEL", "error"),
        ("WG_SUDO", "true"),
    ];
    let words = [program, "--foreground", TUN];
    let mut process =
        PeerProcess::start(namespace, PeerProcess::directory()?, &words, &environment)?;
    let path = process.run(&format!("wireguard/{TUN}.sock"));
    let socket =
        process.wait_for("control socket", interrupt, || UnixStream::connect(&path).ok())?;
    configure(&socket, &path, configuration)?;
    Ok(process)
}

/// The `set` request for one end.
fn configuration((own, others): (&KeyPair, &KeyPair), there: &GatewaySite) -> String {
    format!(
        "set=1\nprivate_key={}\nlisten_port={PORT}\nreplace_peers=true\npublic_key={}\n\
         endpoint={}:{PORT}\nreplace_allowed_ips=true\nallowed_ip={}/{PREFIX_LEN}\n\n",
        own.private, others.public, there.wire, there.lan_net
    )
}

fn configure(mut socket: &UnixStream, path: &Path, configuration: &str) -> anyhow::Result<()> {
    let path = path.display();
    socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    socket
        .write_all(configuration.as_bytes())
        .with_context(|| format!("cannot write to {path}"))?;
    for line in BufReader::new(socket).lines() {
        match line.with_context(|| format!("no answer from {path}"))?.split_once('=') {
            Some(("errno", "0")) => return Ok(()),
            Some(("errno", errno)) => bail!("{path} answers errno {errno}"),
            Some(_) | None => {}
        }
    }
    bail!("{path} closed without an answer")
}
