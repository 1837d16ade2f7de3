//! What a C++ or Rust source says, read from LLVM's text that clang or rustc makes of it without
//! optimization: functions, what they call and touch, and the lines of these calls.
//!
//! A syntax tree has all of the headers in it, hundreds of megabytes; this has only what is used.
//! Templates are there as instances, each with its types in its mangled name.

use crate::Error;
use crate::ast::Source;
use crate::cargo;
use crate::flow::{self, Flow, Value};
use crate::names::{CARGOS, is_rust_member, is_rusts, plain_type};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// A call of a function, at a line of the source.
#[derive(Debug)]
pub(crate) struct Call {
    /// The mangled name, or of a call through a pointer the function's type.
    pub(crate) callee: Result<String, String>,
    pub(crate) place: Option<(String, u32)>,
    /// The type that `new` makes.
    pub(crate) makes: Option<String>,
    /// The mangled name of the function, compiled into its caller, that has the call, the
    /// outermost.
    pub(crate) within: Option<String>,
    pub(crate) arguments: Vec<Value>,
}

/// A function with a body.
#[derive(Debug, Default)]
pub(crate) struct Function {
    /// Its place is in the user's sources, not in a library's header.
    pub(crate) users: bool,
    /// Of a class.
    pub(crate) member: bool,
    /// Its type, as it matters for calls through pointers.
    pub(crate) r#type: String,
    pub(crate) calls: Vec<Call>,
    /// Structures whose fields it addresses; in Rust the types of its variables.
    pub(crate) fields: BTreeSet<String>,
    /// The same in C++, each field by its number.
    pub(crate) members: BTreeSet<(String, u32)>,
    /// Names of global variables and functions in it.
    pub(crate) globals: BTreeSet<String>,
    /// Of a user's function in C++.
    pub(crate) flow: Option<Flow>,
}

/// What sources say, all together.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// By mangled name.
    pub(crate) functions: BTreeMap<String, Function>,
    /// Functions whose address is taken, those in tables of virtual functions too.
    pub(crate) addressed: BTreeSet<String>,
}

impl Module {
    /// Adds a source, which its compiler compiles to LLVM's text.
    ///
    /// # Errors
    /// Where there is no such compiler, or it does not compile the source.
    pub(crate) fn add(&mut self, source: &Source) -> Result<(), Error> {
        let failed = |why: String| Error::Source { source: source.file.clone(), why };
        if source.is_manifest() {
            for text in cargo::texts(&source.file, &source.flags).map_err(failed)? {
                self.read(&std::fs::read_to_string(&text).map_err(|error| failed(error.to_string()))?);
            }
            return Ok(());
        }
        if source.is_llvms() {
            let text = std::fs::read_to_string(&source.file).map_err(|error| failed(error.to_string()))?;
            self.read(&text);
            let has_types = |name: &String| !is_rusts(name) || name.starts_with("_R");
            if self.functions.keys().all(has_types) {
                return Ok(());
            }
            return Err(failed("its names have no types: build it with -Csymbol-mangling-version=v0".to_owned()));
        }
        let (name, words): (_, &[&str]) = if source.is_rust() {
            ("rustc", &cargo::FLAGS)
        } else {
            ("clang", &["-S", "-emit-llvm", "-g", "-O0", "-w"])
        };
        let mut compiler = Command::new(name);
        compiler.args(&source.flags).args(words).args(["-o", "-"]).arg(&source.file);
        let said = compiler.output().map_err(|error| failed(format!("{name}: {error}; install it")))?;
        if !said.status.success() {
            let text = String::from_utf8_lossy(&said.stderr);
            let line = text.lines().find(|line| line.contains("error"));
            return Err(failed(line.map_or_else(|| format!("{name} failed"), str::to_owned)));
        }
        self.read(&String::from_utf8_lossy(&said.stdout));
        Ok(())
    }

    fn read(&mut self, text: &str) {
        let debug = Debug::of(text);
        let mut inside: Option<String> = None;
        let mut lines = text.lines().filter(|line| !line.starts_with(';'));
        while let Some(line) = lines.next() {
            if let Some(rest) = line.strip_prefix("define ") {
                let Some((Ok(name), r#type)) = called(rest) else { continue };
                let described = metadata(rest, "!dbg !");
                let users = described.and_then(|id| debug.users_file(id)).is_some();
                let is_rusts = is_rusts(&name);
                let member =
                    if is_rusts { is_rust_member(&name) } else { described.is_some_and(|id| debug.is_member(id)) };
                let fields = match described {
                    Some(id) if is_rusts && !debug.is_languages(id) => debug.types_of_variables(id),
                    _ => BTreeSet::new(),
                };
                let flow = (users && !is_rusts).then(|| Flow::of(flow::arguments(rest, &name)));
                let function = Function { users, member, r#type, fields, flow, ..Function::default() };
                self.functions.insert(name.clone(), function);
                inside = Some(name);
            } else if line == "}" {
                inside = None;
            } else if let Some(function) = inside.as_ref().and_then(|name| self.functions.get_mut(name)) {
                if line.contains("invoke ") {
                    // Its second half has the place.
                    let whole = format!("{line} {}", lines.next().unwrap_or_default());
                    instruction(&whole, &debug, function, &mut self.addressed);
                } else {
                    instruction(line, &debug, function, &mut self.addressed);
                }
            } else if line.starts_with('@') {
                let value = line.split_once(" = ").map_or("", |(_, value)| value);
                self.addressed.extend(names(value));
            }
        }
    }
}

fn instruction(line: &str, debug: &Debug, function: &mut Function, addressed: &mut BTreeSet<String>) {
    let code = line.split(", !dbg ").next().unwrap_or(line);
    if let Some((_, of)) = code.split_once("getelementptr ") {
        function.fields.extend(structure(of));
        function.members.extend(flow::member(of));
    }
    function.globals.extend(names(code));
    let call = ["call ", "invoke "].iter().find_map(|word| code.split_once(word)).map(|(_, rest)| rest);
    let Some((callee, r#type)) = call.and_then(called) else {
        addressed.extend(names(code));
        function.flow.iter_mut().for_each(|flow| flow.add(code, None));
        return;
    };
    let arguments = match (&callee, &mut function.flow) {
        (Ok(callee), Some(flow)) => {
            let arguments = flow::arguments(code, callee);
            flow.add(code, Some(&arguments));
            arguments
        }
        _ => Vec::new(),
    };
    addressed.extend(names(code).filter(|name| callee.as_ref() != Ok(name)));
    let place = metadata(line, "!dbg !").and_then(|id| debug.place(id));
    let makes = metadata(line, "!heapallocsite !").and_then(|id| debug.r#type(id));
    let within = metadata(line, "!dbg !").and_then(|id| debug.within(id));
    function.calls.push(Call { callee: callee.map_err(|()| r#type), place, makes, within, arguments });
}

/// Parts of paths of Rust's libraries.
const RUSTS: [&str; 3] = ["/rustc/", "/rust/deps/", "/rustlib/src/"];

/// Whether a file belongs to the compiler or a library.
fn is_librarys(file: &str) -> bool {
    file.starts_with("/usr/") || is_in(file, &RUSTS) || is_in(file, &CARGOS)
}

fn is_in(file: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| file.contains(part))
}

/// The name after an `@` or a `%`, in quotes or not, and what follows it.
pub(crate) fn name(text: &str) -> (&str, &str) {
    if let Some(quoted) = text.strip_prefix('"') {
        return quoted.split_once('"').unwrap_or((quoted, ""));
    }
    let is_part = |c: char| c.is_alphanumeric() || "_.$-".contains(c);
    text.split_at(text.find(|c| !is_part(c)).unwrap_or(text.len()))
}

/// Names of functions and global variables in it.
fn names(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split('@').skip(1).map(|rest| name(rest).0.to_owned())
}

/// The function that is called or defined here, or that it is a pointer, and its type: a name with
/// a parenthesis right behind it.
fn called(text: &str) -> Option<(Result<String, ()>, String)> {
    let mut at = 0;
    loop {
        let start = at + text[at..].find(['@', '%'])?;
        let (name, after) = name(&text[start + 1..]);
        if let Some(list) = after.strip_prefix('(') {
            let callee = if text[start..].starts_with('@') { Ok(name.to_owned()) } else { Err(()) };
            let result = text[..start].trim_end().rsplit(' ').next().map_or("", kind);
            return Some((callee, format!("{result}({})", arguments(list))));
        }
        at = text.len() - after.len();
    }
}

/// A type as it matters for a call through a pointer: all pointers are one.
fn kind(r#type: &str) -> &str {
    if r#type == "ptr" || r#type.ends_with('*') { "*" } else { r#type }
}

/// The kinds of arguments up to the closing parenthesis: of each the first word.
fn arguments(list: &str) -> String {
    let (mut depth, mut quoted) = (0_u32, false);
    let mut words = vec![String::new()];
    let mut is_type = true;
    for c in list.chars() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            ')' if depth == 0 => break,
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' | '>' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                words.push(String::new());
                is_type = true;
                continue;
            }
            _ => {}
        }
        let word = words.last_mut().filter(|_| is_type);
        let Some(word) = word else { continue };
        if c != ' ' || depth > 0 || quoted {
            word.push(c);
        } else {
            is_type = word.is_empty();
        }
    }
    words.iter().map(|word| kind(word)).collect::<Vec<_>>().join(",")
}

/// The structure whose fields are addressed, without the number that tells instances of a template
/// apart.
pub(crate) fn structure(of: &str) -> Option<String> {
    let (name, _) = name(of.strip_prefix("inbounds ").unwrap_or(of).strip_prefix('%')?);
    let name = name.strip_prefix("struct.").or_else(|| name.strip_prefix("class."))?;
    let number = name.rsplit_once('.').filter(|(_, number)| number.chars().all(|c| c.is_ascii_digit()));
    Some(number.map_or(name, |(name, _)| name).to_owned())
}

/// The number behind this word.
fn metadata(text: &str, word: &str) -> Option<u32> {
    let rest = &text[text.find(word)? + word.len()..];
    rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
}

/// Debug information: numbered lines that name each other.
struct Debug<'a> {
    entries: BTreeMap<u32, &'a str>,
    /// Types of variables by the function or block in which they are.
    variables: BTreeMap<u32, Vec<u32>>,
}

impl<'a> Debug<'a> {
    fn of(text: &'a str) -> Debug<'a> {
        let entry = |line: &'a str| {
            let (id, value) = line.strip_prefix('!')?.split_once(" = ")?;
            Some((id.parse().ok()?, value.strip_prefix("distinct ").unwrap_or(value)))
        };
        let mut debug = Debug { entries: text.lines().filter_map(entry).collect(), variables: BTreeMap::new() };
        let mut variables: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for text in debug.entries.values().filter(|text| text.starts_with("!DILocalVariable")) {
            if let (Some(scope), Some(of)) = (metadata(text, "scope: !"), metadata(text, " type: !")) {
                variables.entry(debug.function(scope)).or_default().push(of);
            }
        }
        debug.variables = variables;
        debug
    }

    /// The function that has this block.
    fn function(&self, mut scope: u32) -> u32 {
        while let Some(outer) = self.get(scope).filter(|text| text.starts_with("!DILexicalBlock")) {
            let Some(next) = metadata(outer, "scope: !") else { break };
            scope = next;
        }
        scope
    }

    /// Types of a Rust function's variables and what they point to.
    fn types_of_variables(&self, function: u32) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for &first in self.variables.get(&function).into_iter().flatten() {
            let mut next = Some(first);
            while let Some(id) = next {
                found.extend(self.own_type(id));
                next = self
                    .get(id)
                    .filter(|text| text.starts_with("!DIDerivedType"))
                    .and_then(|t| metadata(t, "baseType: !"));
            }
        }
        found
    }

    /// The name of a structure, or of a pointer as it is written, a box.
    fn own_type(&self, id: u32) -> Option<String> {
        let text = self.get(id)?;
        let name = if text.starts_with("!DICompositeType") {
            self.r#type(id)?
        } else {
            self.string(id, "name: \"")?.to_owned()
        };
        Some(plain_type(&name).into_owned())
    }

    fn get(&self, id: u32) -> Option<&'a str> {
        self.entries.get(&id).copied()
    }

    fn string(&self, id: u32, field: &str) -> Option<&'a str> {
        let text = self.get(id)?;
        let rest = &text[text.find(field)? + field.len()..];
        rest.split('"').next()
    }

    /// The file of a function or a block, with the directory where the compiler gives both.
    fn file(&self, scope: u32) -> Option<String> {
        let id = metadata(self.get(scope)?, " file: !")?;
        let name = self.string(id, "filename: \"")?;
        let directory = self.string(id, "directory: \"").filter(|directory| !directory.is_empty());
        let directory = directory.filter(|_| !name.starts_with('/'));
        Some(directory.map_or_else(|| name.to_owned(), |directory| format!("{directory}/{name}")))
    }

    /// The same, if it is none of a library's.
    fn users_file(&self, scope: u32) -> Option<String> {
        self.file(scope).filter(|file| !is_librarys(file))
    }

    /// Whether a function is of Rust's own libraries.
    fn is_languages(&self, function: u32) -> bool {
        self.file(function).is_none_or(|file| file.starts_with("/usr/") || is_in(&file, &RUSTS))
    }

    fn is_member(&self, function: u32) -> bool {
        let scope = self.get(function).and_then(|text| metadata(text, " scope: !")).and_then(|scope| self.get(scope));
        scope.is_some_and(|scope| scope.starts_with("!DICompositeType"))
    }

    /// The innermost place in the user's sources.
    fn place(&self, mut location: u32) -> Option<(String, u32)> {
        loop {
            let text = self.get(location)?;
            if let Some(file) = self.users_file(metadata(text, "scope: !")?) {
                return Some((file, metadata(text, "line: ")?));
            }
            location = metadata(text, "inlinedAt: !")?;
        }
    }

    /// The mangled name of the outermost function of a library that is compiled in at a location.
    fn within(&self, mut location: u32) -> Option<String> {
        let mut found = None;
        while let Some(outer) = metadata(self.get(location)?, "inlinedAt: !") {
            let function = self.function(metadata(self.get(location)?, "scope: !")?);
            found = self.string(function, "linkageName: \"").filter(|_| self.users_file(function).is_none());
            location = outer;
        }
        found.map(str::to_owned)
    }

    /// The name of a structure, with its namespaces.
    fn r#type(&self, mut id: u32) -> Option<String> {
        while !self.get(id)?.starts_with("!DICompositeType") {
            id = metadata(self.get(id)?, "baseType: !")?;
        }
        let mut name = self.string(id, "name: \"")?.to_owned();
        while let Some(scope) = self.get(id).and_then(|text| metadata(text, " scope: !")) {
            let outer = self.get(scope)?;
            if !outer.starts_with("!DINamespace") && !outer.starts_with("!DICompositeType") {
                break;
            }
            name = format!("{}::{name}", self.string(scope, "name: \"").unwrap_or("(anonymous namespace)"));
            id = scope;
        }
        Some(name)
    }
}
