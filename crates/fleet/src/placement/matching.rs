//! Children ask gateways, the dearest first; a full gateway lets go of the one that is least dear.
//!
//! This is deferred acceptance (Gale and Shapley 1962). As both sides go by one score, its result
//! hangs on nothing else, so not on the order of children or gateways.

use std::collections::{BTreeMap, HashMap};

use super::{PlacementTarget, score::score};
use crate::names::{ChildId, GatewayName, TunnelName};

pub(super) struct Matching<'a> {
    children: &'a [ChildId],
    candidates: &'a [PlacementTarget<'a>],
    /// Of each child.
    places: Vec<Option<usize>>,
    /// Of each candidate.
    held: Vec<Held<'a>>,
}

/// The children of a gateway.
#[derive(Clone, Default)]
struct Held<'a> {
    /// The least dear first.
    by_rank: BTreeMap<Rank<'a>, usize>,
    by_tunnel: HashMap<&'a TunnelName, Rank<'a>>,
}

/// How dear a child is to a gateway: by score, and where scores are the same by the child.
type Rank<'a> = (Score, &'a ChildId);

/// The bits of a score: those of positive numbers are ordered as the numbers are.
type Score = u64;

/// What a child asked last.
#[derive(Clone, Copy)]
struct Ask<'a> {
    score: Score,
    name: &'a GatewayName,
    gateway: usize,
}

impl<'a> Ask<'a> {
    const fn order(&self) -> (Score, &'a GatewayName) {
        (self.score, self.name)
    }
}

impl<'a> Matching<'a> {
    pub(super) fn new(children: &'a [ChildId], candidates: &'a [PlacementTarget<'a>]) -> Self {
        let held = vec![Held::default(); candidates.len()];
        Self { children, candidates, places: vec![None; children.len()], held }
    }

    pub(super) fn places(self) -> Vec<Option<usize>> {
        self.places
    }

    /// Finds places for all children, none beside another of its tunnel.
    pub(super) fn fill_apart(&mut self) {
        let mut waiting: Vec<_> = (0..self.children.len()).map(|child| (child, None)).collect();
        while let Some((child, last)) = waiting.pop() {
            if let Some(ask) = self.next_ask(child, last) {
                let refused = self.ask(child, ask);
                waiting.extend(refused.map(|(child, ask)| (child, Some(ask))));
            }
        }
    }

    /// Lets children without a place have what room is left, as there are more of their tunnel than
    /// gateways.
    pub(super) fn fill_rest(&mut self) {
        let homeless = (0..self.children.len()).filter(|child| self.places[*child].is_none());
        let mut homeless: Vec<_> = homeless.collect();
        homeless.sort_unstable_by_key(|child| &self.children[*child]);
        for child in homeless {
            let mut last = None;
            while let Some(ask) = self.next_ask(child, last) {
                if self.has_room(ask.gateway) {
                    self.settle(child, ask);
                    break;
                }
                last = Some(ask);
            }
        }
    }

    /// The dearest gateway after the one that was asked last.
    fn next_ask(&self, child: usize, last: Option<Ask<'a>>) -> Option<Ask<'a>> {
        let open = self.candidates.iter().enumerate();
        let open = open.filter(|(_, candidate)| candidate.weight > 0 && candidate.capacity > 0);
        let asks = open.map(|(gateway, candidate)| Ask {
            score: score(&self.children[child], candidate).to_bits(),
            name: candidate.name,
            gateway,
        });
        let left = asks.filter(|ask| last.is_none_or(|last| ask.order() < last.order()));
        left.max_by_key(Ask::order)
    }

    /// Settles a child, if the gateway would rather have it than another; who is refused, and what
    /// that one has asked.
    fn ask(&mut self, child: usize, ask: Ask<'a>) -> Option<(usize, Ask<'a>)> {
        let id = &self.children[child];
        let held = &self.held[ask.gateway];
        let least = || held.by_rank.keys().next().copied();
        let rival = match held.by_tunnel.get(&id.tunnel) {
            Some(sibling) => Some(*sibling),
            None if self.has_room(ask.gateway) => None,
            None => least(),
        };
        if rival.is_some_and(|rival| (ask.score, id) < rival) {
            return Some((child, ask));
        }
        let loser = rival.and_then(|rival| self.release(ask.gateway, rival));
        self.settle(child, ask);
        let score = rival.map_or(0, |(score, _)| score);
        loser.map(|loser| (loser, Ask { score, ..ask }))
    }

    fn has_room(&self, gateway: usize) -> bool {
        let capacity = usize::try_from(self.candidates[gateway].capacity).unwrap_or(usize::MAX);
        self.held[gateway].by_rank.len() < capacity
    }

    fn settle(&mut self, child: usize, ask: Ask<'a>) {
        let rank = (ask.score, &self.children[child]);
        let held = &mut self.held[ask.gateway];
        held.by_rank.insert(rank, child);
        held.by_tunnel.insert(&self.children[child].tunnel, rank);
        self.places[child] = Some(ask.gateway);
    }

    fn release(&mut self, gateway: usize, rank: Rank<'a>) -> Option<usize> {
        let held = &mut self.held[gateway];
        held.by_tunnel.remove(&rank.1.tunnel);
        let child = held.by_rank.remove(&rank)?;
        self.places[child] = None;
        Some(child)
    }
}
