//! The address that pings leave from: one whose pings the tunnel carries.

use std::net::IpAddr;

use anyhow::Context as _;
use uxfrm_io::Rtnetlink;
use uxfrm_status::explanation::{FlowExplanation, FlowOutcome, FlowQuery};

use crate::arguments::ProbeOptions;

/// Own addresses that are looked at, of a host that has very many.
const MOST: usize = 64;

/// A ping, by its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ping {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
}

/// Who knows what a ping would meet.
pub(super) trait Explainer {
    /// What it would meet.
    ///
    /// # Errors
    /// When the gateway does not answer.
    fn explain(&self, ping: &Ping) -> anyhow::Result<FlowExplanation>;
}

impl Ping {
    /// The same as a question.
    pub(super) fn query(&self) -> FlowQuery {
        let is_v4 = self.destination.is_ipv4();
        FlowQuery {
            source: self.source,
            destination: self.destination,
            protocol: Some(if is_v4 { 1 } else { 58 }),
            source_port: Some(if is_v4 { 8 } else { 128 }),
            destination_port: None,
            mark: None,
            way: None,
            esp: None,
        }
    }
}

/// The source that was asked for; else the first own address whose pings do not leave plain, the
/// kernel's choice before others.
///
/// # Errors
/// When the host has no address of that family, or the gateway does not answer.
pub(super) fn choose(options: &ProbeOptions, gateway: &impl Explainer) -> anyhow::Result<IpAddr> {
    match options.source {
        Some(source) => Ok(source),
        None => protected(own_addresses(options.address)?, options.address, gateway),
    }
}

fn protected(
    own: Vec<IpAddr>,
    destination: IpAddr,
    gateway: &impl Explainer,
) -> anyhow::Result<IpAddr> {
    for source in &own {
        let ping = Ping { source: *source, destination };
        if gateway.explain(&ping)?.outcome != FlowOutcome::LeavesPlain {
            return Ok(*source);
        }
    }
    let first = own.into_iter().next();
    first.with_context(|| format!("no own address to ping {destination} from: say `--source`"))
}

/// Own addresses of the destination's family, the one first that the kernel takes for it.
fn own_addresses(destination: IpAddr) -> anyhow::Result<Vec<IpAddr>> {
    let mut netlink = Rtnetlink::open()?;
    let chosen = netlink.route_to(destination, 0).ok().and_then(|route| route.source);
    let all = netlink.addresses()?.into_iter();
    let usable = all.filter(|own| own.is_usable).map(|own| own.prefix.address());
    let of_family = usable.filter(|own| own.is_ipv4() == destination.is_ipv4());
    let others = of_family.filter(|own| !own.is_loopback() && Some(*own) != chosen);
    Ok(chosen.into_iter().chain(others).take(MOST).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gateway that protects what leaves from some addresses.
    struct Protecting(&'static [[u8; 4]]);

    impl Explainer for Protecting {
        fn explain(&self, ping: &Ping) -> anyhow::Result<FlowExplanation> {
            let is_protected = self.0.iter().any(|own| IpAddr::from(*own) == ping.source);
            Ok(FlowExplanation {
                flow: String::new(),
                direction: "out".to_owned(),
                tun: String::new(),
                outcome: match is_protected {
                    true => FlowOutcome::LeavesProtected,
                    false => FlowOutcome::LeavesPlain,
                },
                verdict: String::new(),
                steps: Vec::new(),
                encapsulation: None,
                drop: None,
            })
        }
    }

    #[test]
    fn source_is_the_first_that_does_not_leave_plain() {
        let own: Vec<IpAddr> = vec![[192, 0, 2, 1].into(), [10, 1, 0, 1].into()];
        let to = [10, 2, 0, 1].into();
        let chosen = |ways| protected(own.clone(), to, &Protecting(ways)).unwrap();
        assert_eq!(chosen(&[[10, 1, 0, 1]]), own[1]);
        assert_eq!(chosen(&[[10, 1, 0, 1], [192, 0, 2, 1]]), own[0]);
        assert_eq!(chosen(&[]), own[0], "where none is protected: it is told by this one");
        assert!(protected(Vec::new(), to, &Protecting(&[])).is_err());
    }
}
