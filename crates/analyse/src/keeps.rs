//! Whether memory that a C++ function allocates through a container, a string or the like comes to
//! where the task touches it: by the field, global variable or local variable that has the
//! container, through callers and callees.

use crate::flow::{Origin, Value};
use crate::ir::{Call, Module};
use std::collections::{BTreeMap, BTreeSet};

/// Calls that are followed, outwards and inwards.
const DEPTH: u32 = 4;

/// What the task touches, and who calls whom.
pub(crate) struct Keeps<'a> {
    module: &'a Module,
    entries: &'a [&'a str],
    members: BTreeSet<&'a (String, u32)>,
    globals: BTreeSet<&'a str>,
    /// By function: its callers and their calls.
    callers: BTreeMap<&'a str, Vec<(&'a str, &'a Call)>>,
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
        let mut callers: BTreeMap<&str, Vec<(&str, &Call)>> = BTreeMap::new();
        for (name, function) in module.functions.iter().filter(|(_, function)| function.flow.is_some()) {
            for call in &function.calls {
                if let Ok(callee) = &call.callee {
                    callers.entry(callee).or_default().push((name, call));
                }
            }
        }
        Keeps {
            module,
            entries,
            members: functions().flat_map(|function| &function.members).collect(),
            globals: functions().flat_map(|function| function.globals.iter().map(String::as_str)).collect(),
            callers,
        }
    }

    fn origins(&self, function: &str, value: &Value) -> BTreeSet<Origin> {
        let flow = self.module.functions.get(function).and_then(|function| function.flow.as_ref());
        flow.map(|flow| flow.origins(value)).unwrap_or_default()
    }

    /// Of what a call in a function allocates.
    pub(crate) fn of(&self, function: &'a str, call: &'a Call) -> Kept {
        let mut seen = BTreeSet::new();
        let origins = call.arguments.iter().map(|value| self.origins(function, value));
        // The object comes first; what a function returns whole too. The others are what it is
        // given.
        let first = origins.into_iter().find(|origins| !origins.is_empty());
        let kept = first.map(|origins| self.any(function, &origins, DEPTH, &mut seen));
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
                    let origins = call.arguments.get(*at).map(|value| self.origins(caller, value));
                    origins.map_or(Kept::Unclear, |origins| self.any(caller, &origins, depth - 1, seen))
                });
                let outwards = outwards.max().unwrap_or(Kept::Unclear);
                outwards.max(self.onwards(function, of, depth, seen))
            }
        }
    }

    /// Where a function moves or passes what one of its variables has.
    fn onwards(&self, function: &'a str, of: &Origin, depth: u32, seen: &mut BTreeSet<(&'a str, Origin)>) -> Kept {
        let Some(own) = self.module.functions.get(function) else { return Kept::Unclear };
        let Some(flow) = &own.flow else { return Kept::Unclear };
        let has = |value: &Value| flow.origins(value).contains(of);
        let mut kept = Kept::Elsewhere;
        for (what, to) in &flow.stores {
            if has(what) && !has(to) {
                kept = kept.max(self.any(function, &flow.origins(to), depth, seen));
            }
        }
        for call in &own.calls {
            let Ok(callee) = &call.callee else { continue };
            let Some(at) = call.arguments.iter().position(has) else { continue };
            if self.entries.contains(&callee.as_str()) {
                return Kept::ByTask;
            }
            if moves(callee) {
                for other in call.arguments.iter().filter(|value| !has(value)) {
                    kept = kept.max(self.moved(function, &flow.origins(other), depth, seen));
                }
            }
            if let Some((callee, _)) = self.module.functions.get_key_value(callee).filter(|(_, f)| f.flow.is_some()) {
                kept = kept.max(self.parameter(callee, at, depth, seen));
            }
        }
        kept
    }

    /// Where a move puts it: into what has an origin, or nowhere that is seen.
    fn moved(
        &self,
        function: &'a str,
        origins: &BTreeSet<Origin>,
        depth: u32,
        seen: &mut BTreeSet<(&'a str, Origin)>,
    ) -> Kept {
        if origins.is_empty() { Kept::Elsewhere } else { self.any(function, origins, depth, seen) }
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
