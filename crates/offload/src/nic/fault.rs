//! Injected faults of a device.

use std::{str::FromStr, time::Duration};

/// A fault, for [`ModelNic::inject`](crate::ModelNic::inject). Link down is
/// [`LinkState::Down`](crate::LinkState::Down), for
/// [`ModelNic::set_link`](crate::ModelNic::set_link).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `lost-event N`: the next events are not reported.
    LostEvents(u32),
    /// `full-table N`: the next additions fail with full tables (`ENOSPC`).
    FullTables(u32),
    /// `busy N`: the next additions of kind *packet* fail with `EBUSY`, as where an e-switch holds
    /// the device.
    Busy(u32),
    /// `delay MICROSECONDS`: delays packets in both directions from now on; 0 ends it.
    Delay(Duration),
    /// `wrong-decryption N`: the next protected packets are decrypted wrongly: their ICV does not
    /// match.
    WrongDecryptions(u32),
    /// `reorder N`: the next packets, in both directions, are swapped with their successors.
    Reorder(u32),
}

/// An invalid fault description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no fault: lost-event N, full-table N, busy N, delay MICROSECONDS, wrong-decryption N or reorder N"
)]
pub struct FaultError(String);

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(words: &str) -> Result<Self, FaultError> {
        let wrong = || FaultError(words.to_owned());
        let (name, number) = words.trim().split_once(' ').ok_or_else(wrong)?;
        let number: u32 = number.trim().parse().map_err(|_| wrong())?;
        match name {
            "lost-event" => Ok(Self::LostEvents(number)),
            "full-table" => Ok(Self::FullTables(number)),
            "busy" => Ok(Self::Busy(number)),
            "delay" => Ok(Self::Delay(Duration::from_micros(number.into()))),
            "wrong-decryption" => Ok(Self::WrongDecryptions(number)),
            "reorder" => Ok(Self::Reorder(number)),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read() {
        for (words, fault) in [
            ("lost-event 1", Fault::LostEvents(1)),
            ("full-table 3", Fault::FullTables(3)),
            ("busy 2", Fault::Busy(2)),
            ("delay 500", Fault::Delay(Duration::from_micros(500))),
            ("wrong-decryption 7", Fault::WrongDecryptions(7)),
            (" reorder  9 ", Fault::Reorder(9)),
        ] {
            assert_eq!(words.parse(), Ok(fault));
        }
        for words in ["", "delay", "delay x", "delay -1", "lost-events 1"] {
            assert!(words.parse::<Fault>().is_err(), "{words}");
        }
    }
}
