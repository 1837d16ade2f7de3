//! The static form: allocation points that no watched call needed, and that a task may need by its
//! sources. C++ and Rust are in `instances.rs`.
//!
//! In C, from the entry the functions are followed that are called, through pointers by their type
//! too. What they touch, by type, field or global variable, is compared with where allocated memory
//! goes. A function that returns what it allocates stands for its callers; if it is a wrapper by
//! its name, as `xmalloc`, they are named in its place.

use crate::Error;
use crate::ast::{Allocation, Callee, Facts, Goes, Source, Target};
use crate::instances;
use crate::report::{Place, is_wrappers_name};
use serde::Serialize;
use std::collections::BTreeSet;

/// An allocation point that the task may need in an area, by its sources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Likely {
    /// The line.
    pub at: Place,
    /// What the memory is for: a type, or a field or global variable that points to it.
    pub holds: String,
}

/// What sources say of a task's allocation points.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Points that the task may need, in the order of their places.
    pub likely: Vec<Likely>,
    /// Lines that allocate for a type that the task touches, but in a container of which it cannot
    /// be seen where it comes to.
    pub unclear: usize,
}

/// Functions of C that allocate; others that return `void *` and have `alloc` in their name do too.
pub(crate) const ALLOCATORS: [&str; 11] = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "aligned_alloc",
    "memalign",
    "valloc",
    "pvalloc",
    "strdup",
    "strndup",
    "posix_memalign",
];

fn is_allocator(callee: &Callee, facts: &Facts) -> bool {
    let is_named_so = |name: &str| {
        ALLOCATORS.contains(&name) || (name.to_lowercase().contains("alloc") && !facts.functions.contains_key(name))
    };
    // A program may call malloc through a pointer of its own, as libraries with hooks do.
    callees(callee, facts).into_iter().any(is_named_so)
}

/// Functions that a call may come to.
fn callees<'a>(callee: &'a Callee, facts: &'a Facts) -> Vec<&'a str> {
    match callee {
        Callee::Named(name) => vec![name],
        Callee::Pointer(of) => {
            facts.addressed.iter().filter(|(_, its)| its == of).map(|(name, _)| name.as_str()).collect()
        }
    }
}

fn reached<'a>(entry: &'a str, facts: &'a Facts) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut left = vec![entry];
    while let Some(name) = left.pop() {
        let Some(function) = facts.functions.get(name).filter(|_| found.insert(name)) else { continue };
        left.extend(function.calls.iter().flat_map(|callee| callees(callee, facts)));
    }
    found
}

/// Whether the function that has this allocation returns it, at once or by a variable.
fn is_returned(allocation: &Allocation, facts: &Facts) -> bool {
    match &allocation.goes {
        Goes::Returned => true,
        Goes::To(to) => facts.functions.get(&allocation.function).is_some_and(|f| f.returns.contains(to)),
        Goes::Unknown => false,
    }
}

/// Calls of the function that has this allocation.
fn calls_for<'a>(allocation: &'a Allocation, facts: &'a Facts) -> impl Iterator<Item = &'a Allocation> {
    let name = allocation.function.as_str();
    facts.allocations.iter().filter(move |call| callees(&call.callee, facts).contains(&name))
}

/// The lines to change for an allocation: its own, or of a wrapper as `xmalloc` its callers', as
/// what a run finds is named. `depth` bounds wrappers of wrappers.
fn lines<'a>(allocation: &'a Allocation, facts: &'a Facts, depth: u32) -> Vec<&'a Allocation> {
    if depth > 0 && is_wrappers_name(&allocation.function) && is_returned(allocation, facts) {
        return calls_for(allocation, facts).flat_map(|call| lines(call, facts, depth - 1)).collect();
    }
    vec![allocation]
}

/// What memory is for that an allocation returns, through the callers of functions that return it.
/// What the task allocates itself, in a function that is reached, stays with it. `depth` bounds
/// the callers.
fn holds(allocation: &Allocation, facts: &Facts, reached: &BTreeSet<&str>, depth: u32) -> BTreeSet<Target> {
    let mut found = BTreeSet::new();
    if let Goes::To(target) = &allocation.goes
        && !reached.contains(allocation.function.as_str())
    {
        found.insert(target.clone());
    }
    if depth > 0 && is_returned(allocation, facts) {
        found.extend(calls_for(allocation, facts).flat_map(|call| holds(call, facts, reached, depth - 1)));
    }
    found
}

/// Allocation points that the entry's task may need. The entry is a function of the sources; from
/// one in C no function in C++ or Rust is followed, nor the other way round. Runs clang or rustc
/// for each source.
///
/// # Errors
/// Where the compiler cannot read a source, or no source has the entry.
pub fn likely(entry: &str, sources: &[Source]) -> Result<Found, Error> {
    let (compiled, c): (Vec<&Source>, Vec<&Source>) = sources.iter().partition(|source| source.is_compiled());
    let found = [in_c(entry, &c)?, instances::likely(entry, &compiled)?];
    if found.iter().all(Option::is_none) {
        return Err(Error::NotInSources { entry: entry.to_owned() });
    }
    let mut all = Found::default();
    for found in found.into_iter().flatten() {
        all.likely.extend(found.likely);
        all.unclear += found.unclear;
    }
    Ok(all)
}

/// Those of C sources; nothing if none has the entry.
fn in_c(entry: &str, sources: &[&Source]) -> Result<Option<Found>, Error> {
    const WRAPPERS: u32 = 4;
    let mut facts = Facts::default();
    for source in sources {
        facts.add(&source.file, &source.flags)?;
    }
    if !facts.functions.contains_key(entry) {
        return Ok(None);
    }
    let reached = reached(entry, &facts);
    let touched: BTreeSet<&Target> =
        reached.iter().filter_map(|name| facts.functions.get(*name)).flat_map(|f| &f.touches).collect();
    let mut found = BTreeSet::new();
    let allocating = facts.allocations.iter().filter(|a| is_allocator(&a.callee, &facts));
    for allocation in allocating.flat_map(|a| lines(a, &facts, WRAPPERS)) {
        let needed: Vec<String> = holds(allocation, &facts, &reached, WRAPPERS)
            .iter()
            .filter(|to| touched.contains(to))
            .map(|to| to[2..].to_owned())
            .collect();
        if !needed.is_empty() {
            let (file, line) = allocation.place.clone();
            let at = Place { function: allocation.function.clone(), file: Some(file), line: Some(line) };
            found.insert(Likely { at, holds: needed.join(", ") });
        }
    }
    Ok(Some(Found { likely: found.into_iter().collect(), unclear: 0 }))
}
