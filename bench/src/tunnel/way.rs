//! The ways from one site to the other.

use std::num::NonZeroUsize;

use crate::pair::{Encapsulation, Frames, Protection, Transform};
use crate::report::Case;

/// How packets get to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) frames: Frames,
    pub(crate) gateways: Option<Gateways>,
}

/// A gateway at each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gateways {
    pub(crate) protection: Protection,
    pub(crate) workers: NonZeroUsize,
}

const GCM_UDP: Protection =
    Protection { transform: Transform::Gcm128, encapsulation: Encapsulation::Udp };
const GCM_ESP: Protection = Protection { encapsulation: Encapsulation::Ip, ..GCM_UDP };
const CBC_UDP: Protection = Protection { transform: Transform::Cbc128Sha1, ..GCM_UDP };

const ONE: NonZeroUsize = NonZeroUsize::MIN;
const TWO: NonZeroUsize = ONE.saturating_add(1);

impl Way {
    /// All of them, in the order of the rows.
    pub(crate) fn all() -> Vec<Self> {
        let clear = |frames| Self { frames, gateways: None };
        let tunnel = |frames, protection, workers| Self {
            frames,
            gateways: Some(Gateways { protection, workers }),
        };
        vec![
            clear(Frames::Super),
            tunnel(Frames::Super, GCM_UDP, ONE),
            tunnel(Frames::Super, GCM_ESP, ONE),
            tunnel(Frames::Super, CBC_UDP, ONE),
            tunnel(Frames::Super, GCM_UDP, TWO),
            tunnel(Frames::Super, GCM_ESP, TWO),
            clear(Frames::Real),
            tunnel(Frames::Real, GCM_UDP, ONE),
            tunnel(Frames::Real, GCM_ESP, ONE),
        ]
    }

    /// What all its rows' cases have.
    pub(crate) fn case(&self) -> Case {
        let frames = match self.frames {
            Frames::Super => "super",
            Frames::Real => "1500",
        };
        match self.gateways {
            None => Case::new().with("path", "clear").with("frames", frames),
            Some(Gateways { protection, workers }) => Case::new()
                .with("path", protection.path())
                .with("transform", protection.transform.key())
                .with("frames", frames)
                .with("workers", workers.get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_a_case_of_its_own() {
        let cases: Vec<Case> = Way::all().iter().map(Way::case).collect();
        for (nth, case) in cases.iter().enumerate() {
            assert!(!cases[..nth].contains(case), "{case:?}");
        }
    }
}
