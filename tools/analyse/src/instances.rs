//! The static form for C++ and Rust: allocation points that a task may need by its sources.
//!
//! From the entry the functions are followed that are called, through pointers by their type. The
//! classes whose members these are, and those whose fields they address, are compared with the
//! classes through which the program's other functions allocate: a container's, as the instance
//! that it is, and the type that `new` makes. In Rust the types of the task's variables count as
//! touched, for a box is followed without a call, and its fields have no names in LLVM's text.

use crate::Error;
use crate::ast::Source;
use crate::ir::{Call, Module};
use crate::keeps::{Keeps, Kept};
use crate::likely::{ALLOCATORS, Found, Likely};
use crate::names::{allocated, is_rusts, parts, readable, rust_type};
use crate::report::Place;
use std::collections::{BTreeMap, BTreeSet};

/// Members of `std::string` that may allocate. Its code is in the library: a source has only calls.
const GROW: [&str; 15] = [
    "basic_string",
    "operator=",
    "operator+=",
    "append",
    "assign",
    "insert",
    "push_back",
    "replace",
    "reserve",
    "resize",
    "_M_construct",
    "_M_create",
    "_M_append",
    "_M_assign",
    "_M_replace",
];

/// What a function says to be accessed or allocated: the class of which it is a member.
fn class_of(mangled: &str, module: &Module) -> Option<String> {
    let name = readable(mangled);
    if is_rusts(mangled) {
        return rust_type(&name);
    }
    if module.functions.get(mangled).is_some_and(|function| !function.member) {
        return None;
    }
    let class = parts(&name).0?;
    let is_helper = class.contains("alloc_traits<") || class.contains("allocator_traits<");
    (!is_helper).then(|| allocated(class).unwrap_or(class).to_owned())
}

fn is_allocator(mangled: &str) -> bool {
    // The newer ones of Rust's are mangled.
    const RUSTS: [&str; 4] = ["__rust_alloc", "__rust_alloc_zeroed", "__rust_realloc", "exchange_malloc"];
    mangled.starts_with("_Znw")
        || mangled.starts_with("_Zna")
        || ALLOCATORS.contains(&mangled)
        || RUSTS.iter().any(|name| mangled == *name || (mangled.starts_with("_R") && mangled.ends_with(name)))
}

/// Whether this function of Rust's libraries, of which a source has only calls, may allocate.
fn grows_in_rust(mangled: &str) -> bool {
    const GROW: [&str; 11] = [
        "grow_one",
        "grow_amortized",
        "try_allocate_in",
        "do_reserve_and_handle",
        "reserve",
        "reserve_exact",
        "format",
        "format_inner",
        "clone",
        "to_string",
        "to_owned",
    ];
    let name = readable(mangled);
    let (_, last) = parts(&name);
    is_rusts(mangled) && name.contains("alloc::") && GROW.contains(&last)
}

/// Whether this member of the library's string may allocate; one that takes over another's text
/// does not, nor does an empty string.
fn grows_string(mangled: &str) -> bool {
    const MOVES_OR_EMPTY: [&str; 3] = ["EOS4_", "C1Ev", "C2Ev"];
    if mangled.starts_with("_ZNK") || MOVES_OR_EMPTY.iter().any(|end| mangled.ends_with(end)) {
        return false;
    }
    let name = readable(mangled);
    let (class, member) = parts(&name);
    let member = member.split('<').next().unwrap_or(member);
    class.is_some_and(|class| class.starts_with("std::") && class.contains("basic_string<")) && GROW.contains(&member)
}

/// Functions that a call may come to. What the user's sources call through a pointer is theirs; a
/// library calls back either.
fn callees<'a>(call: &'a Call, by_user: bool, module: &'a Module) -> Vec<&'a str> {
    let of = match &call.callee {
        Ok(name) => return vec![name],
        Err(of) => of,
    };
    let fits = |name: &&String| module.functions.get(*name).is_some_and(|f| f.r#type == *of && (f.users || !by_user));
    module.addressed.iter().filter(fits).map(String::as_str).collect()
}

/// All functions that are called from these, themselves too; with `in_libraries` not through the
/// user's.
fn reached<'a>(from: Vec<&'a str>, module: &'a Module, in_libraries: bool) -> BTreeSet<&'a str> {
    let (mut found, mut left) = (BTreeSet::new(), from);
    while let Some(name) = left.pop() {
        let function = module.functions.get(name);
        if (in_libraries && function.is_some_and(|f| f.users)) || !found.insert(name) {
            continue;
        }
        let Some(function) = function else { continue };
        for call in function.calls.iter().filter(|call| !in_libraries || call.callee.is_ok()) {
            left.extend(callees(call, function.users, module));
        }
    }
    found
}

/// Functions of libraries that allocate, themselves or through others of libraries.
fn allocating(module: &Module) -> BTreeSet<&str> {
    let calls = || module.functions.iter().flat_map(|(name, f)| f.calls.iter().map(move |call| (name, f.users, call)));
    let mut found: BTreeSet<&str> = BTreeSet::new();
    for (_, _, call) in calls() {
        if let Ok(callee) = &call.callee
            && !module.functions.contains_key(callee)
            && (is_allocator(callee) || grows_string(callee) || grows_in_rust(callee))
        {
            found.insert(callee);
        }
    }
    loop {
        let before = found.len();
        for (caller, users, call) in calls() {
            // What a destructor of Rust's allocates goes with what it destroys.
            let destroys = caller.contains("13drop_in_place");
            if !users && !destroys && call.callee.as_ref().is_ok_and(|callee| found.contains(callee.as_str())) {
                found.insert(caller);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// By the function that is called: the classes for which it allocates, itself and through others of
/// libraries.
fn allocates<'a>(callees: BTreeSet<&'a str>, module: &'a Module) -> BTreeMap<&'a str, BTreeSet<String>> {
    let own = |name| {
        let makes = module.functions.get(name).into_iter().flat_map(|f| &f.calls).filter_map(|call| call.makes.clone());
        makes.chain(class_of(name, module)).collect::<Vec<String>>()
    };
    let allocating: BTreeMap<&str, Vec<String>> =
        allocating(module).into_iter().map(|name| (name, own(name))).collect();
    let all = |callee| {
        let through = reached(vec![callee], module, true);
        through.iter().filter_map(|name| allocating.get(name)).flatten().cloned().collect()
    };
    callees.into_iter().filter(|callee| allocating.contains_key(callee)).map(|callee| (callee, all(callee))).collect()
}

/// Allocation points that the entry's task may need; nothing if no source has the entry.
///
/// # Errors
/// Where a compiler cannot compile a source.
pub(crate) fn likely(entry: &str, sources: &[&Source]) -> Result<Option<Found>, Error> {
    let mut module = Module::default();
    for source in sources {
        module.add(source)?;
    }
    let is_entry = |mangled: &&str| {
        let name = readable(mangled);
        name == entry || name.strip_suffix(entry).is_some_and(|outer| outer.ends_with("::"))
    };
    let entries: Vec<&str> = module.functions.keys().map(String::as_str).filter(is_entry).collect();
    if entries.is_empty() {
        return Ok(None);
    }
    let task = reached(entries.clone(), &module, false);
    let mut touched: BTreeSet<String> = task.iter().filter_map(|name| class_of(name, &module)).collect();
    touched.extend(task.iter().filter_map(|name| module.functions.get(*name)).flat_map(|f| f.fields.iter().cloned()));
    // What the task allocates itself stays with it.
    let others = || module.functions.iter().filter(|(name, f)| f.users && !task.contains(name.as_str()));
    let called = others().flat_map(|(_, f)| &f.calls).filter_map(|call| call.callee.as_deref().ok());
    let allocates = allocates(called.collect(), &module);
    let keeps = Keeps::new(&module, &entries, &task);
    let (mut found, mut unclear) = (BTreeSet::new(), BTreeSet::new());
    for (name, function) in others() {
        for (number, call) in function.calls.iter().enumerate() {
            let Some((file, line)) = call.place.clone() else { continue };
            let through = call.callee.as_ref().ok().and_then(|callee| allocates.get(callee.as_str()));
            let within = through.and(call.within.as_ref()).and_then(|name| class_of(name, &module));
            let classes = || call.makes.iter().chain(&within).chain(through.into_iter().flatten());
            let is_touched = |class: &&String| touched.contains(*class) || touched.contains(template(class));
            // The shortest of the names says it best.
            let Some(holds) = classes().filter(is_touched).min_by_key(|class| class.len()).cloned() else {
                continue;
            };
            // What `new` makes is known by its type alone.
            let kept = if function.flow.is_none() || call.makes.as_ref() == Some(&holds) {
                Kept::ByTask
            } else {
                keeps.of(name, number)
            };
            let at = Place { function: readable(name), file: Some(file), line: Some(line) };
            match kept {
                Kept::ByTask => {}
                Kept::Elsewhere => continue,
                Kept::Unclear => {
                    unclear.insert(at);
                    continue;
                }
            }
            if !found.iter().any(|known: &Likely| known.at == at) {
                found.insert(Likely { at, holds });
            }
        }
    }
    unclear.retain(|at| !found.iter().any(|known: &Likely| known.at == *at));
    Ok(Some(Found { likely: found.into_iter().collect(), unclear: unclear.len() }))
}

/// A class without its template's arguments, as structures have it; the library's only whole.
fn template(class: &str) -> &str {
    if ["std::", "alloc::", "hashbrown::"].iter().any(|library| class.starts_with(library)) {
        class
    } else {
        class.split('<').next().unwrap_or(class)
    }
}
