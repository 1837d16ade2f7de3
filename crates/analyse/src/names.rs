//! Names of functions in LLVM's text, of C++ and of Rust: what a programmer calls them, and the
//! class or type of which they are members.

use std::borrow::Cow;

/// A name without parameters and result; of Rust without hashes of crates.
pub(crate) fn readable(mangled: &str) -> String {
    if is_rusts(mangled) {
        return format!("{:#}", rustc_demangle::demangle(mangled));
    }
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type().recursion_limit(128);
    let symbol = cpp_demangle::Symbol::new(mangled).ok();
    symbol.and_then(|symbol| symbol.demangle_with_options(&options).ok()).unwrap_or_else(|| mangled.to_owned())
}

/// Whether rustc has made this name, in either of its manners; the older one ends with a hash.
pub(crate) fn is_rusts(mangled: &str) -> bool {
    const HASH: usize = "17h0123456789abcdefE".len();
    let hash = mangled.len().checked_sub(HASH).and_then(|at| mangled.get(at..));
    mangled.starts_with("_R") || (mangled.starts_with("_ZN") && hash.is_some_and(|hash| hash.starts_with("17h")))
}

/// A name's class or namespace, and its last part.
pub(crate) fn parts(name: &str) -> (Option<&str>, &str) {
    let (mut depth, mut last) = (0_u32, None);
    for (at, c) in name.char_indices() {
        match c {
            '<' | '(' | '{' | '[' => depth += 1,
            // An arrow closes nothing.
            '>' if name[..at].ends_with('-') => {}
            '>' | ')' | '}' | ']' => depth = depth.saturating_sub(1),
            ':' if depth == 0 && name[at..].starts_with("::") => last = Some(at),
            'o' if depth == 0 && name[at..].starts_with("operator") => break,
            _ => {}
        }
    }
    last.map_or((None, name), |at| (Some(&name[..at]), &name[at + 2..]))
}

/// Whether a Rust name is a member of a type.
pub(crate) fn is_rust_member(mangled: &str) -> bool {
    rust_type(&readable(mangled)).is_some()
}

/// The type of which a Rust function is a member: `Vec<u8>` of `<Vec<u8> as Clone>::clone`, of a
/// closure of it too. Two functions of the library stand for the type that they return.
pub(crate) fn rust_type(name: &str) -> Option<String> {
    if name.starts_with("alloc::fmt::format") {
        return Some("alloc::string::String".to_owned());
    }
    if let Some(of) = name.strip_prefix("alloc::vec::from_elem::<").and_then(|rest| rest.strip_suffix('>')) {
        return Some(format!("alloc::vec::Vec<{of}>"));
    }
    let (mut depth, mut end) = (0_u32, None);
    for (at, c) in name.char_indices() {
        match c {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' if name[..at].ends_with('-') => {}
            '>' | ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            end = Some(at);
            break;
        }
    }
    let inside = name.strip_prefix('<').and(name.get(1..end?))?;
    Some(plain_type(before_as(inside)).into_owned())
}

/// The type in `Type as Trait`.
fn before_as(inside: &str) -> &str {
    let mut depth = 0_u32;
    for (at, c) in inside.char_indices() {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' if inside[..at].ends_with('-') => {}
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 && inside[at..].starts_with(" as ") => return &inside[..at],
            _ => {}
        }
    }
    inside
}

/// A Rust type as it is compared: without references, and without the allocator that containers
/// have unless another is named.
pub(crate) fn plain_type(name: &str) -> Cow<'_, str> {
    let mut name = name.trim();
    while let Some(rest) = ["&mut ", "&", "*const ", "*mut ", "dyn "].iter().find_map(|mark| name.strip_prefix(mark)) {
        name = rest;
    }
    const DEFAULT: &str = ", alloc::alloc::Global";
    if name.contains(DEFAULT) { Cow::Owned(name.replace(DEFAULT, "")) } else { Cow::Borrowed(name) }
}

/// The type for which an allocator of C++'s library allocates.
pub(crate) fn allocated(class: &str) -> Option<&str> {
    const KINDS: [&str; 4] =
        ["__gnu_cxx::new_allocator<", "std::__new_allocator<", "std::allocator<", "std::__1::allocator<"];
    KINDS.iter().find_map(|kind| class.strip_prefix(kind)).and_then(|rest| rest.strip_suffix('>')).map(str::trim_end)
}
