//! Names of functions in LLVM's text, of C++ and of Rust: what a programmer calls them, and the
//! class or type of which they are members.

use std::borrow::Cow;

/// Parts of paths of crates that cargo has fetched: a user does not change their lines.
pub(crate) const CARGOS: [&str; 2] = ["/registry/src/", "/git/checkouts/"];

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
/// closure of it too. Some functions of the library stand for the type that they return.
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
    let of = before_as(inside);
    let is_copied = ["to_owned", "to_string", "to_vec"].iter().any(|last| name.ends_with(&format!("::{last}")));
    match of.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(element) if is_copied => Some(format!("alloc::vec::Vec<{element}>")),
        None if is_copied && of == "str" => Some("alloc::string::String".to_owned()),
        _ => Some(plain_type(of).into_owned()),
    }
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
    if let Some(map) = of_tree(name) {
        return Cow::Owned(map.replace(DEFAULT, ""));
    }
    if name.contains(DEFAULT) { Cow::Owned(name.replace(DEFAULT, "")) } else { Cow::Borrowed(name) }
}

/// The map of which a type of Rust's tree is a part: its nodes, entries and iterators have the
/// types of key and value as arguments, the nodes after markers.
fn of_tree(name: &str) -> Option<String> {
    let (_, arguments) = name.strip_prefix("alloc::collections::btree::")?.split_once('<')?;
    let mut left = arguments.strip_suffix('>')?;
    let mut types = Vec::new();
    while !left.is_empty() {
        let end = end_of_type(left);
        let argument = left[..end].trim();
        if argument.starts_with("alloc::collections::btree::node::NodeRef<") {
            return of_tree(argument);
        }
        if !argument.starts_with('\'') && !argument.starts_with("alloc::collections::btree::node::marker::") {
            types.push(argument);
        }
        left = left[end..].trim_start_matches(',');
    }
    let value = types.get(1).filter(|of| **of != "alloc::alloc::Global");
    let value = value.copied().unwrap_or("alloc::collections::btree::set_val::SetValZST");
    Some(format!("alloc::collections::btree::map::BTreeMap<{}, {value}>", types.first()?))
}

/// Where the first of several types ends.
fn end_of_type(list: &str) -> usize {
    let mut depth = 0_u32;
    for (at, c) in list.char_indices() {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' if list[..at].ends_with('-') => {}
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => return at,
            _ => {}
        }
    }
    list.len()
}

/// The type for which an allocator of C++'s library allocates.
pub(crate) fn allocated(class: &str) -> Option<&str> {
    const KINDS: [&str; 4] =
        ["__gnu_cxx::new_allocator<", "std::__new_allocator<", "std::allocator<", "std::__1::allocator<"];
    KINDS.iter().find_map(|kind| class.strip_prefix(kind)).and_then(|rest| rest.strip_suffix('>')).map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use super::{plain_type, rust_type};

    #[test]
    fn parts_of_a_tree_are_their_map() {
        const MAP: &str = "alloc::collections::btree::map::BTreeMap<u32, a::B<u8, u8>>";
        let node = "alloc::collections::btree::node::NodeRef<alloc::collections::btree::node::marker::Mut, u32, \
                    a::B<u8, u8>, alloc::collections::btree::node::marker::Leaf>";
        for part in [
            "&alloc::collections::btree::map::BTreeMap<u32, a::B<u8, u8>, alloc::alloc::Global>",
            "alloc::collections::btree::map::entry::VacantEntry<'_, u32, a::B<u8, u8>>",
            node,
            &format!("alloc::collections::btree::node::Handle<{node}, alloc::collections::btree::node::marker::KV>"),
        ] {
            assert_eq!(plain_type(part), MAP, "{part}");
        }
        let set = plain_type("alloc::collections::btree::set::BTreeSet<u32>").into_owned();
        assert_eq!(set, "alloc::collections::btree::map::BTreeMap<u32, alloc::collections::btree::set_val::SetValZST>");
    }

    #[test]
    fn copies_of_borrowed_data_stand_for_what_they_make() {
        assert_eq!(rust_type("<str as alloc::borrow::ToOwned>::to_owned").as_deref(), Some("alloc::string::String"));
        assert_eq!(rust_type("<[u8]>::to_vec").as_deref(), Some("alloc::vec::Vec<u8>"));
        assert_eq!(rust_type("<str>::len").as_deref(), Some("str"));
    }
}
