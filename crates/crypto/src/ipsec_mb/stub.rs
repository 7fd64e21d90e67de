//! Replaces the fast backend in builds without it: its keys and workers cannot exist.
#![expect(clippy::needless_pass_by_ref_mut, reason = "the shape of the backend it stands in for")]

use core::convert::Infallible;

use crate::job::{OpenJob, SealJob};
use crate::material::KeyMaterial;
use crate::transform::Transform;

pub(crate) const BURST: usize = 64;

pub(crate) fn available() -> bool {
    false
}

#[derive(Debug)]
pub(crate) struct DirectKey(Infallible);

#[derive(Debug)]
pub(crate) struct BurstKey(Infallible);

#[derive(Debug)]
pub(crate) struct Worker(Infallible);

/// Never compared, as no key has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BurstKind;

impl DirectKey {
    pub(crate) fn prefetch(&self) {
        match self.0 {}
    }

    pub(crate) fn new(_: &Transform, _: &KeyMaterial) -> Option<Self> {
        None
    }
}

impl DirectKey {
    pub(crate) fn authenticates_only(&self) -> bool {
        match self.0 {}
    }
}

/// Always empty.
pub(crate) struct DirectCalls;

impl DirectCalls {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn is_empty(&self) -> bool {
        true
    }

    pub(crate) fn are_others(&self, key: &DirectKey, _: usize) -> bool {
        match key.0 {}
    }

    pub(crate) fn seal(&mut self, key: &DirectKey, _: &mut SealJob<'_>, _: usize) {
        match key.0 {}
    }

    pub(crate) fn open(&mut self, key: &DirectKey, _: &mut OpenJob<'_>, _: usize, _: u32) {
        match key.0 {}
    }

    pub(crate) fn run_sealing(&mut self, worker: &mut Worker) {
        match worker.0 {}
    }

    pub(crate) fn run_opening(&mut self, worker: &mut Worker, _: &mut [OpenJob<'_>]) {
        match worker.0 {}
    }
}

impl BurstKey {
    pub(crate) fn prefetch(&self) {
        match self.0 {}
    }

    pub(crate) fn new(_: &Transform, _: &KeyMaterial, _: &KeyMaterial) -> Option<Self> {
        None
    }

    pub(crate) fn kind(&self) -> BurstKind {
        match self.0 {}
    }
}

impl Worker {
    pub(crate) fn new() -> Option<Self> {
        None
    }

    pub(crate) fn seal_gmac(&mut self, _: &DirectKey, _: &mut SealJob<'_>, _: usize) {
        match self.0 {}
    }

    pub(crate) fn open_gmac(&mut self, _: &DirectKey, _: &mut OpenJob<'_>, _: usize) {
        match self.0 {}
    }

    pub(crate) fn seal_burst(&mut self, _: &mut [SealJob<'_>], _: &[u32]) {
        match self.0 {}
    }

    pub(crate) fn open_burst(&mut self, _: &mut [OpenJob<'_>], _: &[u32]) {
        match self.0 {}
    }
}
