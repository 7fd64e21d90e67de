//! Which flows a change of policies may have concerned since something was found out about them. Of all others it holds on.

use crate::spd::scope::{CELLS, Concern, Grain};
use crate::{Direction, FlowKey};

/// When flows were last concerned, in the policies' [epochs](super::table::Epochs).
#[derive(Debug, Default)]
pub(crate) struct Concerned {
    /// By grain.
    grains: [Cells; Grain::ALL.len()],
    /// When all were together.
    all: u16,
}

/// When each cell of a grain was concerned.
#[derive(Debug, Default)]
struct Cells {
    /// The latest of all.
    latest: u16,
    /// Empty while none was.
    each: Box<[u16]>,
}

impl Concerned {
    /// Notes what changed before an epoch; `None`: nobody knows.
    pub(crate) fn note(&mut self, concerns: Option<impl Iterator<Item = Concern>>, epoch: u16) {
        let Some(concerns) = concerns else {
            self.all = epoch;
            return;
        };
        for concern in concerns {
            match concern {
                Concern::Cell(grain, cell) => self.grains[grain.place()].note(cell, epoch),
                Concern::All => self.all = epoch,
            }
        }
    }

    /// Whether what was found out about a flow in an epoch may be another by now.
    #[inline]
    pub(crate) fn is(&self, direction: Direction, flow: &FlowKey, since: u16) -> bool {
        let of_grain = |(cells, grain): (&Cells, Grain)| {
            // Policies of one kind are of one grain: of the others nothing is read.
            since < cells.latest && cells.is(grain.cell_of(direction, flow), since)
        };
        since < self.all || self.grains.iter().zip(Grain::ALL).any(of_grain)
    }

    pub(super) fn memory(&self) -> usize {
        self.grains.iter().map(|cells| size_of_val(&*cells.each)).sum()
    }
}

impl Cells {
    fn note(&mut self, cell: u16, epoch: u16) {
        if self.each.is_empty() {
            self.each = vec![0; CELLS].into();
        }
        self.each[usize::from(cell)] = epoch;
        self.latest = epoch;
    }

    #[inline]
    fn is(&self, cell: u16, since: u16) -> bool {
        self.each.get(usize::from(cell)).is_some_and(|latest| since < *latest)
    }
}
