//! Whether the sender of a packet hears that it is too large, and by whom.
//!
//! The kernel tells where the TUN takes no more than the tunnel does, else uxfrm. The kernel's ICMP
//! error is a packet of the gateway's own: the policies that the gateway knows take or drop it, and
//! its source address, by which they do, is that of the kernel's route to the sender.

use std::net::IpAddr;

use uxfrm_status::explanation::{EncapsulationStatus, SizeErrorWay, StepResult, TooBigStatus};

/// Who sends packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SenderPlace {
    /// A program of this host, whose calls fail.
    ThisHost,
    /// Another host, which the kernel answers from this address, if it has a route there.
    Other { answered_from: Option<IpAddr> },
}

/// Whether a sender hears that a packet is too large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SenderTold {
    pub(crate) result: StepResult,
    pub(crate) text: String,
    pub(crate) mend: Option<String>,
}

impl SenderTold {
    /// Of packets that leave so, by a TUN of this MTU in bytes.
    pub(crate) fn of(outer: &EncapsulationStatus, tun_mtu: u32, sender: SenderPlace) -> Self {
        let is_by_kernel = u64::from(tun_mtu) <= outer.inner_mtu;
        match (is_by_kernel, sender, &outer.too_big) {
            (true, SenderPlace::Other { answered_from }, Some(errors)) => {
                Self::by_kernel(errors, answered_from)
            }
            (true, SenderPlace::ThisHost, _) | (true, SenderPlace::Other { .. }, None) => {
                Self::told("the kernel tells senders")
            }
            (false, SenderPlace::Other { .. }, Some(errors)) => Self::by_uxfrm(errors.uxfrm),
            (false, SenderPlace::ThisHost, _) | (false, SenderPlace::Other { .. }, None) => {
                Self::by_uxfrm(SizeErrorWay::FromHost)
            }
        }
    }

    fn by_kernel(errors: &TooBigStatus, from: Option<IpAddr>) -> Self {
        let lost = errors.lost.iter().find(|lost| Some(lost.from) == from);
        match lost {
            Some(lost) => Self::untold(
                format!(
                    "the kernel's ICMP from {} does not reach the sender: {}",
                    lost.from, lost.cause
                ),
                &lost.mend,
            ),
            None if errors.comes_by_tunnel => Self::untold(
                "the kernel tells senders PLAIN, with a quote of what came in ESP".to_owned(),
                "set `[host] mtu = \"auto\"`: uxfrm tells them then, through the tunnel",
            ),
            None => Self::told("the kernel tells senders"),
        }
    }

    fn by_uxfrm(way: SizeErrorWay) -> Self {
        match way {
            SizeErrorWay::FromHost => Self::told("uxfrm tells senders what fits here"),
            SizeErrorWay::FromDestination => {
                Self::told("uxfrm tells senders what fits here, as if the destination did")
            }
            SizeErrorWay::Withheld => Self::untold(
                "uxfrm tells nobody: its ICMP would leave PLAIN, with a quote of what came in ESP"
                    .to_owned(),
                "have a policy `dir out` protect ICMP to the sender as well",
            ),
        }
    }

    fn told(text: &str) -> Self {
        Self { result: StepResult::Passes, text: text.to_owned(), mend: None }
    }

    fn untold(text: String, mend: &str) -> Self {
        Self { result: StepResult::Doubtful, text, mend: Some(mend.to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_status::explanation::LostErrors;

    use super::*;

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 1));

    fn outer(too_big: Option<TooBigStatus>) -> EncapsulationStatus {
        EncapsulationStatus {
            source: OTHER,
            destination: [10, 9, 0, 2].into(),
            spis: Vec::new(),
            udp_port: None,
            path_mtu: 1500,
            path_mtu_origin: None,
            path_mtu_expires: None,
            inner_mtu: 1446,
            overhead: 54,
            tun_mtu: None,
            fixed_tun_mtu: None,
            clamped_mss: None,
            too_big,
            offloaded: false,
        }
    }

    #[test]
    fn sender_is_told_by_table() {
        use SizeErrorWay::{FromDestination, FromHost, Withheld};
        let lost = || LostErrors {
            from: OWN,
            cause: "`policy p` takes it into its tunnel".to_owned(),
            mend: "add q".to_owned(),
        };
        let errors = |uxfrm, comes_by_tunnel, is_lost: bool| {
            let lost = is_lost.then(lost).into_iter().collect();
            Some(TooBigStatus { uxfrm, comes_by_tunnel, lost })
        };
        let behind = |from| SenderPlace::Other { answered_from: from };
        let kernel = "the kernel tells senders";
        let uxfrm = "uxfrm tells senders what fits here";
        for (tun_mtu, sender, errors, text, mend) in [
            (1446, behind(Some(OWN)), errors(FromHost, false, false), kernel, None),
            (1446, behind(Some(OWN)), None, kernel, None),
            (
                1446,
                behind(Some(OWN)),
                errors(FromDestination, false, true),
                "the kernel's ICMP from 10.1.0.1 does not reach the sender: `policy p` takes it \
                 into its tunnel",
                Some("add q"),
            ),
            (1446, behind(Some(OTHER)), errors(FromDestination, false, true), kernel, None),
            (1446, behind(None), errors(FromDestination, false, true), kernel, None),
            (1446, SenderPlace::ThisHost, errors(FromDestination, true, true), kernel, None),
            (
                1400,
                behind(Some(OWN)),
                errors(FromDestination, true, false),
                "the kernel tells senders PLAIN, with a quote of what came in ESP",
                Some("set `[host] mtu = \"auto\"`: uxfrm tells them then, through the tunnel"),
            ),
            (1500, behind(Some(OWN)), errors(FromHost, false, false), uxfrm, None),
            (1500, SenderPlace::ThisHost, errors(Withheld, false, true), uxfrm, None),
            (
                1500,
                behind(Some(OWN)),
                errors(FromDestination, true, true),
                "uxfrm tells senders what fits here, as if the destination did",
                None,
            ),
            (
                1500,
                behind(Some(OWN)),
                errors(Withheld, true, false),
                "uxfrm tells nobody: its ICMP would leave PLAIN, with a quote of what came in ESP",
                Some("have a policy `dir out` protect ICMP to the sender as well"),
            ),
        ] {
            let told = SenderTold::of(&outer(errors), tun_mtu, sender);
            assert_eq!((told.text.as_str(), told.mend.as_deref()), (text, mend));
            assert_eq!(told.result == StepResult::Passes, mend.is_none());
        }
    }
}
