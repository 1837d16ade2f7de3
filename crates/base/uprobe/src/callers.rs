//! The callers of a function, and where it is seen there that it has returned.
//!
//! Owns: what is known of the callers of one function in one process. The kernel half notes return
//! addresses; whoever watches says where to probe behind each ([`crate::code::behind`]); until then
//! executions from there are not seen to end. If there is nowhere for one of them, or there are too
//! many, the function's own returns are stepped instead. Places where others come by too are tried,
//! until hits show that these are many.

use crate::CodeFile;
use crate::code::{Place, Return, Shape};
use crate::table::Hits;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Callers of a function whose places are probed: with more it is cheaper to step.
const MAX_CALLERS: usize = 64;

/// Where it is seen that a function has returned to a caller.
#[derive(Clone, Debug)]
pub struct Behind {
    /// The caller's file.
    pub file: Arc<CodeFile>,
    /// The places, by their offsets in that file.
    pub places: Return,
}

/// Places of a file, by their offsets in it.
pub(crate) type InFile<'a> = (&'a Arc<CodeFile>, Vec<Place>);

/// The callers of a function.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    /// By return address; nothing where it cannot be seen.
    known: BTreeMap<u64, Option<Behind>>,
    unknown: bool,
    /// No places are probed where others come by too.
    alone: bool,
}

/// More hits than this for each entry, and [`SPARE_HITS`] in all, are too many.
const MAX_HITS_PER_ENTRY: u64 = 8;
const SPARE_HITS: u64 = 1000;

impl Callers {
    /// Whether the function's own returns have to be stepped.
    pub(crate) fn step(&self) -> bool {
        self.unknown || self.known.len() > MAX_CALLERS
    }

    /// Notes one; whether it was not known.
    pub(crate) fn add(&mut self, back: u64, behind: Option<Behind>) -> bool {
        self.unknown |= behind.as_ref().is_none_or(|b| self.alone && b.places.own.is_none());
        self.known.insert(back, behind).is_none()
    }

    /// One of them cannot be probed.
    pub(crate) fn fail(&mut self) {
        self.unknown = true;
    }

    /// Of these return addresses, those of which nothing is known.
    pub(crate) fn unknown(&self, mut seen: Vec<u64>) -> Vec<u64> {
        seen.retain(|back| !self.known.contains_key(back));
        seen
    }

    /// Where to probe, by the file: once where several callers continue at one place.
    pub(crate) fn places(&self, shape: &Shape) -> Vec<InFile<'_>> {
        let mut files: BTreeMap<(u64, u64), InFile<'_>> = BTreeMap::new();
        let mut there = BTreeSet::new();
        for behind in self.known.values().flatten() {
            let Some(place) = self.place(behind, shape) else { continue };
            let file = behind.file.identity();
            if there.insert((file, place.offset)) {
                files.entry(file).or_insert_with(|| (&behind.file, Vec::new())).1.push(place);
            }
        }
        files.into_values().collect()
    }

    /// Where to probe behind a call, if anywhere, for the exits that are not seen in the function
    /// itself. Which of them it was is not known there: they count as one.
    pub(crate) fn place(&self, behind: &Behind, shape: &Shape) -> Option<Place> {
        let Return { own, shared } = behind.places;
        let place = shared.filter(|_| !self.alone).or(own)?;
        Some(Place { exit: shape.ends.iter().find(|e| !e.emulated).and_then(|e| e.exit), ..place })
    }

    /// Whether these hits of one window show that too many others come by where the function
    /// returns, so that it is to be probed elsewhere from now on: where nothing else does, if that
    /// is known of each caller that shares its place, else in the function itself.
    pub(crate) fn crowded(&mut self, hits: Hits) -> bool {
        let many = hits.exits > hits.entries.saturating_mul(MAX_HITS_PER_ENTRY).saturating_add(SPARE_HITS);
        if !many || self.unknown {
            return false;
        }
        let places = || self.known.values().flatten().map(|b| b.places);
        let elsewhere = !self.alone && places().any(|p| p.shared.is_some()) && places().all(|p| p.own.is_some());
        self.alone |= elsewhere;
        self.unknown |= !elsewhere;
        true
    }
}
