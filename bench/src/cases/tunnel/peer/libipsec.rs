//! strongSwan's own data plane: charon with kernel-libipsec at both ends, AES-GCM-128 by IKEv2.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use uxfrm_io::Namespace;

use super::process::PeerProcess;
use crate::pair::{A, B, GatewaySite, Interrupt, PREFIX_LEN, Topology};

/// The file that shows that it is installed.
pub(super) const PLUGIN: &str = "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so";

const CHARON: &str = "/usr/lib/ipsec/charon";

/// Starts both charons and has one initiate.
pub(super) fn start(
    topology: &Topology,
    interrupt: &Interrupt,
) -> anyhow::Result<[PeerProcess; 2]> {
    let caller = start_end(&topology.a, (&A, &B), interrupt)?;
    let called = start_end(&topology.b, (&B, &A), interrupt)?;
    for process in [&caller, &called] {
        let file = process.path().join("swanctl.conf");
        let words = ["--load-all", "--clear", "--file", &file.display().to_string()];
        swanctl(process, &words)?;
    }
    swanctl(&caller, &["--initiate", "--child", "net"])?;
    Ok([caller, called])
}

fn start_end(
    namespace: &Namespace,
    (here, there): (&GatewaySite, &GatewaySite),
    interrupt: &Interrupt,
) -> anyhow::Result<PeerProcess> {
    let directory = PeerProcess::directory()?;
    let settings = directory.path().join("strongswan.conf");
    fs::write(&settings, strongswan_conf(directory.path()))?;
    fs::write(directory.path().join("swanctl.conf"), swanctl_conf(here, there))?;
    let settings = settings.display().to_string();
    let mut process =
        PeerProcess::start(namespace, directory, &[CHARON], &[("STRONGSWAN_CONF", &settings)])?;
    let vici = process.path().join("vici");
    process.wait_for("vici socket", interrupt, || vici.exists().then_some(()))?;
    Ok(process)
}

fn swanctl(process: &PeerProcess, words: &[&str]) -> anyhow::Result<()> {
    let at = |file: &str| process.path().join(file).display().to_string();
    let uri = format!("unix://{}", at("vici"));
    let mut command = Command::new("swanctl");
    command.args(words).args(["--uri", &uri]).env("STRONGSWAN_CONF", at("strongswan.conf"));
    let done = command.output().context("cannot run swanctl")?;
    if !done.status.success() {
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        bail!(process.failed(&format!("was told {words:?}: {said}")));
    }
    Ok(())
}

fn strongswan_conf(directory: &Path) -> String {
    format!(
        "charon {{\n\
           load = kernel-libipsec random nonce openssl hmac kdf pem pkcs1 pkcs8 x509 pubkey kernel-netlink socket-default vici\n\
           install_routes = yes\n\
           filelog {{\nstderr {{\ndefault = 0\nflush_line = yes\n}}\n}}\n\
           plugins {{\nvici {{\nsocket = unix://{}/vici\n}}\n}}\n\
         }}\n\
         swanctl {{\nload = random nonce openssl pem pkcs1 pkcs8 x509 pubkey\n}}\n",
        directory.display()
    )
}

/// The pre-shared key need not be secret: both ends are processes of one round on this machine.
fn swanctl_conf(here: &GatewaySite, there: &GatewaySite) -> String {
    let net = |site: &GatewaySite| format!("{}/{PREFIX_LEN}", site.lan_net);
    format!(
        "connections {{\nto {{\n\
           version = 2\nlocal_addrs = {0}\nremote_addrs = {1}\nmobike = no\n\
           proposals = aes128gcm16-prfsha256-ecp256\n\
           local {{\nauth = psk\nid = {0}\n}}\n\
           remote {{\nauth = psk\nid = {1}\n}}\n\
           children {{\nnet {{\nlocal_ts = {2}\nremote_ts = {3}\nesp_proposals = aes128gcm16-ecp256\n}}\n}}\n\
         }}\n}}\n\
         secrets {{\nike {{\nsecret = bench\n}}\n}}\n",
        here.wire,
        there.wire,
        net(here),
        net(there)
    )
}
