//! Whether memory that a C++ function allocates through a container, a string or the like comes to
//! where the task touches it: by the field, global variable or local variable that has the
//! container, through callers and callees.

use crate::flow::Origin;
use crate::ir::{Call, Module};
use std::collections::{BTreeMap, BTreeSet};

/// Calls that are followed, outwards and inwards.
const DEPTH: u32 = 4;

/// The origins of a function's operands: of each call's arguments, and of what is stored where.
struct Known {
    calls: Vec<Vec<BTreeSet<Origin>>>,
    stores: Vec<(BTreeSet<Origin>, BTreeSet<Origin>)>,
}

/// What the task touches, and who calls whom.
pub(crate) struct Keeps<'a> {
    module: &'a Module,
    entries: &'a [&'a str],
    members: BTreeSet<&'a (String, u32)>,
    globals: BTreeSet<&'a str>,
    known: BTreeMap<&'a str, Known>,
    /// By function: its callers and the numbers of their calls.
    callers: BTreeMap<&'a str, Vec<(&'a str, usize)>>,
}

/// What is known of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kept {
    /// Where the task does not come.
    Elsewhere,
    Unclear,
    /// Where the task touches it.
    ByTask,
}

impl<'a> Keeps<'a> {
    pub(crate) fn new(module: &'a Module, entries: &'a [&'a str], task: &'a BTreeSet<&'a str>) -> Keeps<'a> {
        let functions = || task.iter().filter_map(|name| module.functions.get(*name));
        let (mut callers, mut known): (BTreeMap<&str, Vec<_>>, BTreeMap<&str, Known>) = Default::default();
        for (name, function) in &module.functions {
            let Some(flow) = &function.flow else { continue };
            for (at, call) in function.calls.iter().enumerate() {
                if let Ok(callee) = &call.callee {
                    callers.entry(callee).or_default().push((name.as_str(), at));
                }
            }
            let arguments = |call: &Call| call.arguments.iter().map(|value| flow.origins(value)).collect();
            let calls = function.calls.iter().map(arguments).collect();
            let stores = flow.stores.iter().map(|(what, to)| (flow.origins(what), flow.origins(to))).collect();
            known.insert(name, Known { calls, stores });
        }
        Keeps {
            module,
            entries,
            members: functions().flat_map(|function| &function.members).collect(),
            globals: functions().flat_map(|function| function.globals.iter().map(String::as_str)).collect(),
            known,
            callers,
        }
    }

    /// Of what the call of this number in a function allocates.
    pub(crate) fn of(&self, function: &'a str, call: usize) -> Kept {
        let mut seen = BTreeSet::new();
        // The object comes first; what a function returns whole too. The others are what it is
        // given.
        let first = self.known.get(function).and_then(|known| known.calls[call].iter().find(|each| !each.is_empty()));
        let kept = first.map(|origins| self.any(function, origins, DEPTH, &mut seen));
        kept.unwrap_or(Kept::Unclear)
    }

    fn any(
        &self,
        function: &'a str,
        origins: &BTreeSet<Origin>,
        depth: u32,
        seen: &mut BTreeSet<(&'a str, Origin)>,
    ) -> Kept {
        let each = origins.iter().map(|origin| self.origin(function, origin, depth, seen));
        each.max().unwrap_or(Kept::Unclear)
    }

    fn origin(&self, function: &'a str, of: &Origin, depth: u32, seen: &mut BTreeSet<(&'a str, Origin)>) -> Kept {
        let known = |is_touched| if is_touched { Kept::ByTask } else { Kept::Elsewhere };
        match of {
            Origin::Field(class, field) => known(self.members.contains(&(class.clone(), *field))),
            Origin::Global(name) => known(self.globals.contains(name.as_str())),
            _ if depth == 0 => Kept::Unclear,
            _ if !seen.insert((function, of.clone())) => Kept::Elsewhere,
            Origin::Local(_) => self.onwards(function, of, depth, seen),
            Origin::Parameter(at) => {
                let callers = self.callers.get(function).into_iter().flatten();
                let outwards = callers.map(|(caller, call)| {
                    let origins = self.known.get(caller).and_then(|known| known.calls[*call].get(*at));
                    origins.map_or(Kept::Unclear, |origins| self.any(caller, origins, depth - 1, seen))
                });
                let outwards = outwards.max().unwrap_or(Kept::Unclear);
                outwards.max(self.onwards(function, of, depth, seen))
            }
        }
    }

    /// Where a function moves or passes what one of its variables has.
    fn onwards(&self, function: &'a str, of: &Origin, depth: u32, seen: &mut BTreeSet<(&'a str, Origin)>) -> Kept {
        let Some((own, known)) = self.module.functions.get(function).zip(self.known.get(function)) else {
            return Kept::Unclear;
        };
        let mut kept = Kept::Elsewhere;
        for (_, to) in known.stores.iter().filter(|(what, to)| what.contains(of) && !to.contains(of)) {
            kept = kept.max(self.any(function, to, depth, seen));
        }
        for (call, arguments) in own.calls.iter().zip(&known.calls) {
            let Ok(callee) = &call.callee else { continue };
            let Some(at) = arguments.iter().position(|origins| origins.contains(of)) else { continue };
            if self.entries.contains(&callee.as_str()) {
                return Kept::ByTask;
            }
            if moves(callee) {
                for other in arguments.iter().filter(|origins| !origins.contains(of) && !origins.is_empty()) {
                    kept = kept.max(self.any(function, other, depth, seen));
                }
            }
            if let Some((callee, _)) = self.known.get_key_value(callee.as_str()) {
                kept = kept.max(self.parameter(callee, at, depth, seen));
            }
        }
        kept
    }

    fn parameter(&self, callee: &'a str, at: usize, depth: u32, seen: &mut BTreeSet<(&'a str, Origin)>) -> Kept {
        let parameter = Origin::Parameter(at);
        if depth == 0 || !seen.insert((callee, parameter.clone())) {
            return Kept::Elsewhere;
        }
        self.onwards(callee, &parameter, depth - 1, seen)
    }
}

/// Whether a function moves what it is given: it has a parameter that is an rvalue, or swaps.
fn moves(mangled: &str) -> bool {
    ["EO", "OT_", "DpOT", "swap", "5reset"].iter().any(|part| mangled.contains(part))
}
