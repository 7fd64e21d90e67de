//! The states that a batch's packets came by, each once however its packets are mixed with others'.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use uxfrm_packet::{BATCH, esp};

use super::{Name, narrow};
use crate::sa::config::SaFlags;
use crate::spd::flow_cache::Turn;
use crate::{AnswerId, Mark, Mode, Sa, Spi, UdpEncapKind};

/// A state and what it is to be charged for this round.
#[derive(Debug)]
pub(super) struct Used {
    pub(super) sa: Arc<Sa>,
    pub(super) packets: u32,
    pub(super) bytes: u64,
    pub(super) standing: Standing,
    /// The policies under which packets that came through this state alone may pass, whatever their flow; not known yet without.
    pub(super) passes: Option<AnswerId>,
    pub(super) turn: Turn,
    /// By what the latest of its packets that was looked up found it.
    name: Option<Name>,
    pub(super) encap: Option<UdpEncapKind>,
    /// A device has to do with it.
    pub(super) offloaded: bool,
    pub(super) spi: Spi,
    /// Bytes of SPI, sequence number and IV; and of ICV.
    pub(super) lead: u32,
    pub(super) icv: u32,
    pub(super) mode: Mode,
    pub(super) extended: bool,
    pub(super) flags: SaFlags,
    pub(super) output_mark: Mark,
}

/// What charging a state's packets together gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// All pass.
    Good,
    /// Only some fit under a hard limit: each is charged on its own.
    OneByOne,
    /// None passes.
    Expired,
}

/// All of a batch. A place says which.
#[derive(Debug)]
pub(super) struct UsedStates {
    all: Vec<Used>,
    /// By the last bits of a state's turn, where it may stand in `all`; to be believed only if that one is it.
    hints: Box<[u32; BATCH]>,
    /// The same, by the last bits of the SPI.
    names: Box<[u32; BATCH]>,
}

impl UsedStates {
    pub(super) fn new() -> Self {
        Self { all: Vec::new(), hints: Box::new([0; BATCH]), names: Box::new([0; BATCH]) }
    }

    /// The place of a state, which takes one if it has none.
    #[inline]
    pub(super) fn place(&mut self, sa: &Arc<Sa>) -> u32 {
        let hint = &mut self.hints[Turn::of(sa).slot(BATCH)];
        let there = self.all.get(*hint as usize);
        if !there.is_some_and(|there| Arc::ptr_eq(&there.sa, sa)) {
            *hint = narrow(self.all.len());
            self.all.push(Used::of(sa));
        }
        *hint
    }

    /// The place of the state that this name found in this batch, if it is remembered.
    #[inline]
    pub(super) fn named(&self, name: Name) -> Option<u32> {
        let place = self.names[slot(name)];
        let there = self.all.get(place as usize)?;
        (there.name == Some(name)).then_some(place)
    }

    /// Remembers what a state was found by.
    pub(super) fn note_name(&mut self, place: u32, name: Name) {
        self.names[slot(name)] = place;
        self.all[place as usize].name = Some(name);
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }
}

fn slot((spi, ..): Name) -> usize {
    spi.0 as usize % BATCH
}

impl Deref for UsedStates {
    type Target = [Used];

    #[inline]
    fn deref(&self) -> &[Used] {
        &self.all
    }
}

impl DerefMut for UsedStates {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Used] {
        &mut self.all
    }
}

impl Used {
    fn of(sa: &Arc<Sa>) -> Self {
        let (config, transform) = (sa.config(), sa.transform());
        Self {
            sa: Arc::clone(sa),
            packets: 0,
            bytes: 0,
            standing: Standing::Good,
            passes: None,
            turn: Turn::of(sa),
            name: None,
            encap: config.encap.as_ref().map(|encap| encap.kind),
            offloaded: config.offload.is_some(),
            spi: sa.id().spi,
            lead: narrow(esp::HEADER_LEN + transform.iv_len()),
            icv: narrow(transform.icv_len()),
            mode: config.mode,
            extended: sa.extended(),
            flags: config.flags,
            output_mark: config.output_mark,
        }
    }
}
