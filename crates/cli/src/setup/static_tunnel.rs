//! A tunnel with static keys: configuration and batch file of both ends, with fresh keys.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{bail, ensure};
use uxfrm_engine::Prefix;
use zeroize::Zeroizing;

use super::CONFIG;
use super::plan::{Access, Plan, Step};

/// Bytes of a key of `rfc4106(gcm(aes))`: 256 bits, and a salt of 32.
const KEY_BYTES: usize = 36;

/// Addresses of documentation (RFC 5737), where none are given.
const EXAMPLE_ENDS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1))];
const EXAMPLE_NETS: [&str; 2] = ["10.1.0.0/24", "10.2.0.0/24"];

/// Two ends and the nets behind them; ours first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StaticTunnel {
    ends: [IpAddr; 2],
    nets: [String; 2],
    /// Whether ends or nets are those of the example.
    is_example: bool,
    /// Whether the ends are of one family and the nets of the other.
    is_mixed: bool,
}

/// One direction: an SPI and a key.
struct Direction {
    spi: u32,
    key: Zeroizing<String>,
}

impl StaticTunnel {
    /// Between two addresses; what is not given is an example's.
    ///
    /// # Errors
    /// When the two ends, or the two nets, are not of one family or not apart, or a net is none.
    pub(super) fn between(
        ends: [Option<IpAddr>; 2],
        nets: [&Option<String>; 2],
    ) -> anyhow::Result<Self> {
        let is_example = ends.contains(&None) || nets.contains(&&None);
        let [local, peer] = ends;
        let ends = match (local, peer) {
            (None, None) => EXAMPLE_ENDS,
            (Some(local), Some(peer)) => [local, peer],
            (Some(_), None) | (None, Some(_)) => bail!("--local and --peer go together"),
        };
        let nets = match nets {
            [None, None] => EXAMPLE_NETS.map(str::to_owned),
            [Some(local), Some(peer)] => [local.clone(), peer.clone()],
            [Some(_), None] | [None, Some(_)] => bail!("--local-net and --peer-net go together"),
        };
        ensure!(ends[0].is_ipv4() == ends[1].is_ipv4(), "--local and --peer are of two families");
        ensure!(ends[0] != ends[1], "--local and --peer are one address, {}", ends[0]);
        let [here, there] = [prefix(&nets[0])?, prefix(&nets[1])?];
        ensure!(here.family() == there.family(), "--local-net and --peer-net are of two families");
        // One may be a part of the other, as of all addresses.
        let is_one = here.covers(there) && there.covers(here);
        ensure!(!is_one, "--local-net and --peer-net are one net, {}", nets[1]);
        let is_mixed = ends[0].is_ipv4() != here.address().is_ipv4();
        Ok(Self { ends, nets, is_example, is_mixed })
    }

    /// Files for both ends.
    ///
    /// # Errors
    /// The kernel's, where it gives no random numbers.
    pub(super) fn plan(&self) -> io::Result<Plan> {
        let directions = [Direction::fresh()?, Direction::fresh()?];
        let (ends, nets) = (swapped(&self.ends), swapped(&self.nets));
        let mirrored = Self { ends, nets, is_example: false, is_mixed: self.is_mixed };
        let [to_peer, from_peer] = &directions;
        let mut plan = Plan::default();
        let mut file = |path: &str, text: String, access| {
            plan.steps.push(Step::file(path, text, access));
        };
        file(CONFIG, configuration(), Access::Gateway);
        file("/etc/uxfrm/static.batch", self.batch([to_peer, from_peer]), Access::Gateway);
        file("/etc/uxfrm/peer/uxfrm.toml", configuration(), Access::Root);
        file("/etc/uxfrm/peer/static.batch", mirrored.batch([from_peer, to_peer]), Access::Root);
        plan.notes = self.notes();
        Ok(plan)
    }

    fn notes(&self) -> Vec<String> {
        let peer = match self.ends[1] {
            IpAddr::V4(address) => address.to_string(),
            // As scp wants it.
            IpAddr::V6(address) => format!("[{address}]"),
        };
        let mut notes = Vec::new();
        if self.is_example {
            notes.push(
                "addresses and nets are examples: put yours in both static.batch, or undo and give --local, --peer, --local-net, --peer-net"
                    .to_owned(),
            );
        }
        let files = "uxfrm.toml static.batch";
        notes.push(format!(
            "next, here: cd /etc/uxfrm/peer && scp {files} root@{peer}:/etc/uxfrm/ && rm {files} && rmdir /etc/uxfrm/peer"
        ));
        // scp keeps the mode 0600, and the unit runs as user uxfrm.
        notes.push(format!(
            "then, at both ends: cd /etc/uxfrm && chgrp uxfrm {files} && chmod 0640 {files} && uxfrm check {CONFIG} && systemctl enable --now uxfrm"
        ));
        notes
    }

    /// The lines of this end: `out` is by the first direction.
    fn batch(&self, [out, into]: [&Direction; 2]) -> String {
        let ([local, peer], [near, far]) = (&self.ends, &self.nets);
        let mixed = if self.is_mixed { " af-unspec" } else { "" };
        let mut text = "# Written by `uxfrm setup static`. Keys: only root and the group uxfrm may read this file.\n"
            .to_owned();
        for (from, to, direction) in [(local, peer, out), (peer, local, into)] {
            let Direction { spi, key } = direction;
            let _never = writeln!(
                text,
                "xfrm state add src {from} dst {to} proto esp spi {spi:#010x} reqid 1 mode tunnel replay-window 128 flag esn{mixed} aead 'rfc4106(gcm(aes))' 0x{} 128",
                key.as_str()
            );
        }
        for (direction, sources, from, to) in [
            ("out", [near, far], local, peer),
            ("in", [far, near], peer, local),
            ("fwd", [far, near], peer, local),
        ] {
            let [src, dst] = sources;
            let _never = writeln!(
                text,
                "xfrm policy add src {src} dst {dst} dir {direction} tmpl src {from} dst {to} proto esp reqid 1 mode tunnel"
            );
        }
        text
    }
}

fn configuration() -> String {
    "# Written by `uxfrm setup static`; `uxfrm setup --undo` removes it. All keys: uxfrm.toml.example.\n\
     [xfrm]\n\
     batch = [\"static.batch\"]\n"
        .to_owned()
}

fn swapped<T: Clone>([first, second]: &[T; 2]) -> [T; 2] {
    [second.clone(), first.clone()]
}

/// A net's addresses; without a length it is one address.
fn prefix(net: &str) -> anyhow::Result<Prefix> {
    let (address, length) = match net.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (net, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        bail!("{net} is no net: ADDRESS/LENGTH, as in 10.1.0.0/24");
    };
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let Ok(length) = length.map_or(Ok(longest), str::parse) else {
        bail!("{net} is no net: ADDRESS/LENGTH, as in 10.1.0.0/24");
    };
    let Ok(prefix) = Prefix::new(address, length) else {
        bail!("{net}: the prefix is too long");
    };
    Ok(prefix)
}

impl Direction {
    /// SPIs up to 255 are reserved (RFC 4303 §2.1).
    fn fresh() -> io::Result<Self> {
        let mut spi = [0; 4];
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        uxfrm_io::random::fill(&mut spi)?;
        uxfrm_io::random::fill(&mut *bytes)?;
        let mut key = Zeroizing::new(String::with_capacity(2 * KEY_BYTES));
        for byte in bytes.iter() {
            let _never = write!(key, "{byte:02x}");
        }
        Ok(Self { spi: u32::from_be_bytes(spi) | 0x1000, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(plan: &Plan) -> Vec<&str> {
        plan.steps
            .iter()
            .filter_map(|step| match step {
                Step::File(file) => Some(file.text.as_str()),
                Step::Lines { .. } | Step::Link { .. } => None,
            })
            .collect()
    }

    #[test]
    fn both_ends_have_the_same_states_and_mirrored_policies() {
        let ends = [Some("2001:db8::1".parse().unwrap()), Some("2001:db8::2".parse().unwrap())];
        let nets = [&Some("10.3.0.0/16".to_owned()), &Some("10.4.0.0/16".to_owned())];
        let plan = StaticTunnel::between(ends, nets).unwrap().plan().unwrap();
        let texts = texts(&plan);
        let states = |text: &str| {
            let mut lines: Vec<_> =
                text.lines().filter(|line| line.contains(" state ")).map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(states(texts[1]), states(texts[3]));
        assert_eq!(states(texts[1]).len(), 2);
        let policy = "src 10.3.0.0/16 dst 10.4.0.0/16 dir";
        assert!(texts[1].contains(&format!("{policy} out tmpl src 2001:db8::1")));
        for direction in ["in", "fwd"] {
            assert!(texts[3].contains(&format!("{policy} {direction} tmpl src 2001:db8::1")));
        }
        assert_eq!(plan.notes.len(), 2);
        assert!(plan.notes[0].contains("root@[2001:db8::2]:/etc/uxfrm/"), "{}", plan.notes[0]);
        assert_eq!(texts[1].matches("flag esn af-unspec ").count(), 2, "{}", texts[1]);
    }

    #[test]
    fn states_for_one_family_alone_have_no_flag_for_both() {
        let example = StaticTunnel::between([None, None], [&None, &None]).unwrap();
        assert!(!texts(&example.plan().unwrap())[1].contains("af-unspec"));
    }

    #[test]
    fn keys_and_spis_are_fresh_each_time() {
        let example = StaticTunnel::between([None, None], [&None, &None]).unwrap();
        let [first, second] = [example.plan().unwrap(), example.plan().unwrap()];
        assert_ne!(texts(&first)[1], texts(&second)[1]);
        let keys: Vec<_> = texts(&first)[1].match_indices(" 0x").collect();
        assert_eq!(keys.len(), 4);
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let net = Some("10.1.0.0/24".to_owned());
        let address = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let other = Some("::1".parse().unwrap());
        assert!(StaticTunnel::between([address, None], [&None, &None]).is_err());
        assert!(StaticTunnel::between([address, other], [&None, &None]).is_err());
        assert!(StaticTunnel::between([None, None], [&net, &None]).is_err());
        assert!(StaticTunnel::between([None, None], [&net, &Some("::/0".to_owned())]).is_err());
        assert!(StaticTunnel::between([address, address], [&None, &None]).is_err());
        for wrong in ["10.1.0.0/33", "ten", "10.1.0.0/", "10.1.0.9/24"] {
            let wrong = Some(wrong.to_owned());
            assert!(StaticTunnel::between([None, None], [&net, &wrong]).is_err());
        }
        for right in ["0.0.0.0/0", "10.1.0.9"] {
            let right = Some(right.to_owned());
            assert!(StaticTunnel::between([None, None], [&net, &right]).is_ok());
        }
    }
}
