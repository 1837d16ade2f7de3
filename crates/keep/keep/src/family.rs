//! The children of a kept program: each is kept by itself, by a thread of its own in the keeper.
//!
//! Memory for a child is made before it is needed: its parent takes a spare right before the fork,
//! the child maps it as its first act.

use crate::arguments::Settings;
use crate::error::Error;
use crate::keeper::Keeper;
use crate::layout::SPARES;
use crate::report::Reporter;
use crate::shared::Shared;
use graft::Process;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Children that are kept at a time; another one is not.
const MAX_CHILDREN: usize = 64;
/// How long a child may take from its parent's fork to its first act.
const BIRTH_LIMIT: Duration = Duration::from_secs(30);

/// The children of one process.
pub(crate) struct Family {
    spares: Vec<Arc<Shared>>,
    adopted: u32,
    is_full: bool,
    children: Vec<JoinHandle<()>>,
}

impl Family {
    /// From now on children of the program that has `shared` are kept.
    pub fn new(shared: &Shared, settings: &Settings) -> Result<Family, Error> {
        let spares = (0..SPARES).map(|_| spare(shared, settings).map(Arc::new)).collect::<Result<Vec<_>, _>>();
        let spares = spares.map_err(Error::io("making shared memory for children"))?;
        for (nth, spare) in spares.iter().enumerate() {
            shared.set_spare(nth, spare);
        }
        Ok(Family { spares, adopted: 0, is_full: false, children: Vec::new() })
    }

    /// Keeps the children that were made since.
    pub fn adopt(&mut self, shared: &Shared, settings: &Arc<Settings>, reporter: &mut Reporter) -> Result<(), Error> {
        self.children.retain(|child| !child.is_finished());
        // What the program says is bounded: each round needs a spare that was made here.
        while self.adopted != shared.claimed() {
            if self.children.len() == MAX_CHILDREN {
                if !std::mem::replace(&mut self.is_full, true) {
                    shared.end_family();
                    reporter.warn(format!("it has {MAX_CHILDREN} children: further ones are not kept"));
                }
                return Ok(());
            }
            let nth = self.adopted as usize % SPARES;
            let next = Arc::new(spare(shared, settings).map_err(Error::io("making shared memory for a child"))?);
            shared.set_spare(nth, &next);
            let its = std::mem::replace(&mut self.spares[nth], next);
            self.adopted = self.adopted.wrapping_add(1);
            shared.count_adopted();
            let (settings, reporter) = (Arc::clone(settings), reporter.clone());
            let keep = move || keep(its, &settings, reporter);
            let thread = std::thread::Builder::new().name("keep-child".into()).spawn(keep);
            self.children.push(thread.map_err(Error::io("making the thread that keeps a child"))?);
        }
        Ok(())
    }

    /// Whether a child is still kept.
    pub fn lives(&self) -> bool {
        self.children.iter().any(|child| !child.is_finished())
    }
}

/// Memory for a child. Its parent may have left request mode, as one that serves nothing itself;
/// the child has not.
fn spare(shared: &Shared, settings: &Settings) -> std::io::Result<Shared> {
    let child = shared.for_child()?;
    child.expect_family();
    if let Some(rules) = &settings.rules {
        child.set_rules(rules, rules.processes.serves(false));
    }
    Ok(child)
}

/// Keeps the child that takes this memory, until it exits.
fn keep(shared: Arc<Shared>, settings: &Arc<Settings>, reporter: Reporter) {
    let end = Instant::now() + BIRTH_LIMIT;
    let pid = loop {
        if let Some(pid) = shared.taken_by() {
            break pid;
        }
        // The fork failed, or the child has ended already.
        if Instant::now() > end {
            return;
        }
        shared.wait_bell(shared.bell(), Duration::from_millis(5));
    };
    let mut reporter = reporter.of_child(pid);
    let kept = Process::find(pid).map_err(Error::from);
    let kept = kept.and_then(|process| Keeper::of_child(process, Arc::clone(&shared), settings, reporter.clone()));
    if kept.is_err() {
        shared.end_family();
    }
    match kept.and_then(|keeper| keeper.run(None)) {
        Ok(_) | Err(Error::Graft(graft::Error::Gone { .. })) => {}
        Err(error) => reporter.warn(format!("it is not kept: {error}")),
    }
}
