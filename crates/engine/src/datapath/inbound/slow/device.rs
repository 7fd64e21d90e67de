//! Packets that a device received, by what it says of them ([`crate::device::contract`] has the contract).
//!
//! Mirrors `net/xfrm/xfrm_input.c: xfrm_input` and `include/net/xfrm.h: __xfrm_policy_check2` where they look at `struct xfrm_offload`. One
//! thing differs: Linux believes a device that does all the work, and checks no policy for its packets; here they are checked like others.

use uxfrm_crypto::Authenticity;
use uxfrm_packet::Checksum;

use crate::datapath::context::Bench;
use crate::datapath::inbound::Inbound;
use crate::{Candidate, DeviceMark, Direction, DropReason, OffloadKind, Sa};

/// Who opens a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opener {
    /// The crypto library.
    Engine,
    /// A device did, and says that the packet is authentic.
    Device,
    /// A device tried, and says that it is not.
    DeviceForged,
}

impl Opener {
    /// What a device says of a packet.
    pub(crate) const fn verdict(self) -> Option<Authenticity> {
        match self {
            Self::Engine => None,
            Self::Device => Some(Authenticity::Authentic),
            Self::DeviceForged => Some(Authenticity::Forged),
        }
    }
}

impl Inbound {
    /// Packets that a device did all the work for come through their states here, and are peeled and checked like others from here on.
    pub(crate) fn admit_marked(&mut self, bench: &Bench<'_>) {
        let mut latest = None;
        for place in 0..self.items.len() {
            let Some(mark) = self.mark(place).filter(|mark| mark.kind == OffloadKind::Packet)
            else {
                continue;
            };
            // Packets of one state often follow each other.
            let outcome = match latest {
                Some((known, state)) if known == mark => Ok(state),
                Some(_) | None => self.admit(mark, bench),
            };
            match outcome {
                Ok(state) => {
                    latest = Some((mark, state));
                    let item = &mut self.items[place];
                    item.mark = self.used[state as usize].around.output_mark.applied_to(item.mark);
                    item.path.push(state);
                }
                Err(reason) => self.drop(place, reason, bench),
            }
        }
    }

    /// The place in `used` of the state that a device says it did all the work of.
    fn admit(&mut self, mark: DeviceMark, bench: &Bench<'_>) -> Result<u32, DropReason> {
        let handle = mark.handle.ok_or(DropReason::InDeviceMark)?;
        let sa = bench.snapshot.sad.attached(mark.device, handle);
        let is_its = |sa: &Sa| {
            let way = sa.config().offload.as_ref().map(|offload| offload.direction);
            sa.packet_device() == Some(mark.device) && way == Some(Direction::In)
        };
        let sa = sa.filter(|sa| is_its(sa)).ok_or(DropReason::InDeviceMark)?;
        if let Some(reason) = mark.status.refusal() {
            return Err(reason);
        }
        sa.receives()?;
        Ok(self.used.place(sa))
    }

    /// Who opens an ESP packet of a state that a device has, or one that a device marked.
    pub(crate) fn opener(&self, place: usize, sa: &Sa) -> Result<Opener, DropReason> {
        // What was inside another state came from there, whatever a device did outside.
        let outermost = self.items[place].path.is_empty();
        let mark = self.mark(place).filter(|_| outermost);
        let Some(mark) = mark else {
            return match sa.packet_device() {
                Some(_) => Err(DropReason::InDeviceOnly),
                None => Ok(Opener::Engine),
            };
        };
        let is_its = sa.attachment().is_some_and(|at| {
            at.kind == OffloadKind::Crypto
                && at.device == mark.device
                && mark.handle.is_none_or(|handle| handle == at.handle)
        });
        if !is_its {
            return Err(DropReason::InDeviceMark);
        }
        match mark.status.refusal() {
            None => Ok(Opener::Device),
            Some(DropReason::InForged) => Ok(Opener::DeviceForged),
            Some(reason) => Err(reason),
        }
    }

    /// What a device says of a packet holds for the number that it was opened with. Below the window the upper half is taken for the next one (RFC 4303
    /// §A2.2), and the ICV must say that it is not.
    pub(crate) fn opener_of(
        &self,
        place: usize,
        sa: &Sa,
        number: Candidate,
        opener: Opener,
    ) -> Opener {
        let as_another = || {
            let mark = self.mark(place);
            sa.extended() && mark.is_none_or(|mark| u64::from(mark.high) != number.number() >> 32)
        };
        match opener {
            Opener::Device if as_another() => Opener::DeviceForged,
            Opener::Engine | Opener::Device | Opener::DeviceForged => opener,
        }
    }

    /// What a device found to be right is, if nobody has taken anything off since.
    pub(crate) fn believe_device(&mut self, place: usize) {
        let whole = self.mark(place).is_some_and(|mark| mark.kind == OffloadKind::Packet);
        let item = &mut self.items[place];
        let buffer = self.buffers[item.buffer as usize].as_ref();
        if item.path.len() == usize::from(whole)
            && buffer.is_some_and(|buffer| buffer.checksum == Checksum::Verified)
        {
            item.is_verified = true;
        }
    }

    /// What a device says of an item; a train's packets have one mark.
    fn mark(&self, place: usize) -> Option<DeviceMark> {
        let item = &self.items[place];
        *self.marks.get(item.buffer as usize)?
    }
}
