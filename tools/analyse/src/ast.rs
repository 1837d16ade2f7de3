//! What a C source says, read from clang's syntax tree as JSON: functions, what they call and
//! touch, and where memory is allocated.
//!
//! Pointers are known by the type they point to; those to bytes and numbers, which all look alike,
//! by the field or global variable that has them.

use crate::Error;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of the stack on which a tree is walked; only what is used takes memory.
const STACK: usize = 1 << 30;

/// A node of the tree: only what is read of it.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Node {
    kind: String,
    name: String,
    r#type: Type,
    loc: Loc,
    range: Range,
    opcode: String,
    is_arrow: bool,
    referenced_decl: Option<Box<Node>>,
    inner: Vec<Node>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Type {
    qual_type: String,
    desugared_qual_type: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Loc {
    file: Option<String>,
    line: Option<u32>,
    spelling_loc: Option<Box<Loc>>,
    expansion_loc: Option<Box<Loc>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Range {
    begin: Loc,
    end: Loc,
}

/// What is pointed to: a type (`T:lock`), or bytes that a field or a global variable has
/// (`K:lock.name`, `K:label`).
pub(crate) type Target = String;

/// Where memory goes that a call returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Goes {
    /// Into something of this kind.
    To(Target),
    /// To the caller of the function.
    Returned,
    /// It cannot be known.
    Unknown,
}

/// A call that returns untyped memory.
#[derive(Clone, Debug)]
pub(crate) struct Allocation {
    /// The function that has the call.
    pub(crate) function: String,
    /// Its source file and line.
    pub(crate) place: (String, u32),
    /// What is called: a function's name, or of a pointer to one its type.
    pub(crate) callee: Callee,
    pub(crate) goes: Goes,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Callee {
    Named(String),
    Pointer(String),
}

/// What a function does.
#[derive(Debug, Default)]
pub(crate) struct Function {
    pub(crate) calls: BTreeSet<Callee>,
    pub(crate) touches: BTreeSet<Target>,
    /// Variables that it returns, which have untyped memory: `void *p = malloc(n); …; return p;`
    pub(crate) returns: BTreeSet<Target>,
}

/// What sources say, all together.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) functions: BTreeMap<String, Function>,
    pub(crate) allocations: Vec<Allocation>,
    /// Functions whose address is taken, and their types.
    pub(crate) addressed: BTreeSet<(String, String)>,
    bodies: BTreeSet<String>,
}

impl Facts {
    /// Adds a source, which clang parses with these flags.
    ///
    /// # Errors
    /// Where there is no clang, or it does not parse the source.
    pub(crate) fn add(&mut self, source: &Path, flags: &[String]) -> Result<(), Error> {
        let failed = |why: String| Error::Source { source: source.to_owned(), why };
        let mut clang = Command::new("clang");
        clang.args(flags).args(["-fsyntax-only", "-w", "-Xclang", "-ast-dump=json"]).arg(source);
        let said = clang.output().map_err(|error| failed(format!("clang: {error}; install it")))?;
        if !said.status.success() {
            let text = String::from_utf8_lossy(&said.stderr);
            return Err(failed(text.lines().find(|l| l.contains("error")).unwrap_or("clang failed").to_owned()));
        }
        // A tree is as deep as the source's longest chain of else and operators: it is walked on a
        // stack of its own.
        std::thread::scope(|scope| {
            let read = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || self.read(&said.stdout));
            let done = read.map_err(|error| failed(error.to_string()))?.join();
            done.unwrap_or_else(|_| Err("it could not be walked".into())).map_err(failed)
        })
    }

    fn read(&mut self, json: &[u8]) -> Result<(), String> {
        let mut parser = serde_json::Deserializer::from_slice(json);
        parser.disable_recursion_limit();
        let tree = Node::deserialize(&mut parser).map_err(|error| format!("clang's tree: {error}"))?;
        bodies(&tree, &mut self.bodies);
        let mut walk = Walk { facts: self, file: String::new(), line: 0, function: String::new() };
        walk.visit(&tree, &Context::default());
        Ok(())
    }
}

fn bodies(node: &Node, found: &mut BTreeSet<String>) {
    for inner in &node.inner {
        if inner.kind == "FunctionDecl" && inner.inner.iter().any(|part| part.kind == "CompoundStmt") {
            found.insert(inner.name.clone());
        }
    }
}

/// Of the expressions around the one that is visited.
#[derive(Clone, Default)]
struct Context {
    goes: Option<Goes>,
    cast: Option<String>,
}

struct Walk<'a> {
    facts: &'a mut Facts,
    file: String,
    line: u32,
    function: String,
}

/// A type without qualifiers and the words struct, union, enum; sizes as what they are, since clang
/// writes the same function's type either way.
fn plain(r#type: &Type) -> String {
    let text = r#type.desugared_qual_type.as_ref().unwrap_or(&r#type.qual_type);
    let dropped = ["const", "volatile", "restrict", "struct", "union", "enum"];
    let text = text.replace('*', " * ").replace("ssize_t", "long").replace("size_t", "unsigned long");
    text.split_whitespace().filter(|word| !dropped.contains(word)).collect::<Vec<_>>().join(" ")
}

/// What a pointer or an array of this type points to.
fn pointee(plain: &str) -> Option<&str> {
    plain.strip_suffix('*').map(str::trim_end).or_else(|| plain.split_once('[').map(|(of, _)| of.trim_end()))
}

/// Whether pointers to this say nothing of what they point to.
fn is_scalar(plain: &str) -> bool {
    const WORDS: [&str; 12] =
        ["void", "char", "int", "long", "short", "unsigned", "signed", "float", "double", "_Bool", "bool", "__int128"];
    plain.split_whitespace().all(|word| WORDS.contains(&word))
}

fn stripped(mut node: &Node) -> &Node {
    while ["ImplicitCastExpr", "CStyleCastExpr", "ParenExpr"].contains(&node.kind.as_str()) && !node.inner.is_empty() {
        node = &node.inner[node.inner.len() - 1];
    }
    node
}

/// The field or global variable that an expression is, or an element of one.
fn keeper(node: &Node) -> Option<String> {
    let node = stripped(node);
    match node.kind.as_str() {
        "MemberExpr" => {
            let base = plain(&node.inner.first()?.r#type);
            Some(format!("{}.{}", pointee(&base).unwrap_or(&base), node.name))
        }
        "DeclRefExpr" => node.referenced_decl.as_ref().filter(|d| d.kind == "VarDecl").map(|d| d.name.clone()),
        "ArraySubscriptExpr" => keeper(node.inner.first()?).map(|of| of + "[]"),
        _ => None,
    }
}

/// What a pointer points to that has this type and is this expression.
fn target(pointer: &str, expression: &Node) -> Option<Target> {
    let to = pointee(pointer)?;
    if is_scalar(to) { keeper(expression).map(|key| format!("K:{key}")) } else { Some(format!("T:{to}")) }
}

impl Walk<'_> {
    fn at(&mut self, loc: &Loc) {
        for inner in [&loc.spelling_loc, &loc.expansion_loc].into_iter().flatten() {
            self.at(inner);
        }
        if let Some(file) = &loc.file {
            self.file.clone_from(file);
        }
        self.line = loc.line.unwrap_or(self.line);
    }

    fn touch(&mut self, target: Option<Target>) {
        let function = self.facts.functions.entry(self.function.clone()).or_default();
        function.touches.extend(target);
    }

    /// Positions are given only where they change, in the order of the text: each node has to pass
    /// here once.
    fn visit(&mut self, node: &Node, around: &Context) {
        self.at(&node.loc);
        self.at(&node.range.begin);
        let place = (self.file.clone(), self.line);
        self.at(&node.range.end);
        match node.kind.as_str() {
            "FunctionDecl" => {
                let outer = std::mem::replace(&mut self.function, node.name.clone());
                self.all(&node.inner);
                self.function = outer;
            }
            "VarDecl" => {
                let kept = target(&plain(&node.r#type), &named(node));
                self.inner(node, Some(kept.map_or(Goes::Unknown, Goes::To)));
            }
            "ReturnStmt" => {
                let returned = node.inner.first().map(stripped).filter(|of| of.kind == "DeclRefExpr");
                let kept = returned.and_then(|of| target(&plain(&of.r#type), of));
                let function = self.facts.functions.entry(self.function.clone()).or_default();
                function.returns.extend(kept.filter(|to| to.starts_with("K:")));
                self.inner(node, Some(Goes::Returned));
            }
            "BinaryOperator" if node.opcode == "=" && node.inner.len() == 2 => {
                self.visit(&node.inner[0], &Context::default());
                let kept = target(&plain(&node.inner[0].r#type), &node.inner[0]);
                self.visit(&node.inner[1], &Context { goes: Some(kept.map_or(Goes::Unknown, Goes::To)), cast: None });
            }
            "ImplicitCastExpr" | "CStyleCastExpr" | "ParenExpr" | "ConditionalOperator" => {
                let mut context = around.clone();
                let to = plain(&node.r#type);
                if pointee(&to).is_some_and(|to| !is_scalar(to)) {
                    context.cast = Some(to);
                }
                for inner in &node.inner {
                    self.visit(inner, &context);
                }
            }
            "CallExpr" => self.call(node, place, around),
            "MemberExpr" => {
                if let Some(base) = node.inner.first().filter(|_| node.is_arrow) {
                    self.touch(target(&plain(&base.r#type), base));
                }
                self.all(&node.inner);
            }
            "ArraySubscriptExpr" => {
                if let Some(base) = node.inner.first() {
                    self.touch(target(&plain(&base.r#type), base));
                }
                self.all(&node.inner);
            }
            "UnaryOperator" if node.opcode == "*" => {
                if let Some(base) = node.inner.first() {
                    self.touch(target(&plain(&base.r#type), base));
                }
                self.all(&node.inner);
            }
            "DeclRefExpr" => {
                if let Some(to) = node.referenced_decl.as_ref().filter(|d| d.kind == "FunctionDecl") {
                    self.facts.addressed.insert((to.name.clone(), plain(&to.r#type)));
                }
            }
            _ => self.all(&node.inner),
        }
    }

    fn all(&mut self, nodes: &[Node]) {
        for node in nodes {
            self.visit(node, &Context::default());
        }
    }

    fn inner(&mut self, node: &Node, goes: Option<Goes>) {
        for inner in &node.inner {
            self.visit(inner, &Context { goes: goes.clone(), cast: None });
        }
    }

    fn call(&mut self, node: &Node, place: (String, u32), around: &Context) {
        let Some((function, arguments)) = node.inner.split_first() else { return };
        let to = stripped(function);
        let declared = to.referenced_decl.as_ref().filter(|d| d.kind == "FunctionDecl");
        let callee = if let Some(declared) = declared {
            self.positions(function);
            Callee::Named(declared.name.clone())
        } else {
            self.visit(function, &Context::default());
            let of = plain(&function.r#type);
            Callee::Pointer(of.replacen("( * ) ", "", 1).replacen("( * )", "", 1).trim().to_owned())
        };
        let has_body = matches!(&callee, Callee::Named(name) if self.facts.bodies.contains(name));
        for argument in arguments {
            // A library's function reads what it is given.
            if declared.is_some() && !has_body {
                let expression = stripped(argument);
                self.touch(target(&plain(&expression.r#type), expression));
            }
            self.visit(argument, &Context::default());
        }
        let by_address =
            arguments.first().map(stripped).filter(|first| first.kind == "UnaryOperator" && first.opcode == "&");
        let goes = if callee == Callee::Named("posix_memalign".into()) {
            let kept = by_address.and_then(|first| first.inner.first());
            kept.and_then(|kept| target(&plain(&kept.r#type), kept)).map(Goes::To)
        } else if ["void *", "char *"].contains(&plain(&node.r#type).as_str()) {
            let cast = around.cast.as_ref().and_then(|cast| pointee(cast)).map(|to| Goes::To(format!("T:{to}")));
            Some(cast.or_else(|| around.goes.clone()).unwrap_or(Goes::Unknown))
        } else {
            None
        };
        if let Some(goes) = goes {
            let function = self.function.clone();
            self.facts.allocations.push(Allocation { function, place, callee: callee.clone(), goes });
        }
        self.facts.functions.entry(self.function.clone()).or_default().calls.insert(callee);
    }

    /// Only positions, of a name that is called.
    fn positions(&mut self, node: &Node) {
        self.at(&node.loc);
        self.at(&node.range.begin);
        self.at(&node.range.end);
        for inner in &node.inner {
            self.positions(inner);
        }
    }
}

/// A declared variable as an expression that names it.
fn named(variable: &Node) -> Node {
    let declared = Node { kind: "VarDecl".into(), name: variable.name.clone(), ..Node::default() };
    Node { kind: "DeclRefExpr".into(), referenced_decl: Some(Box::new(declared)), ..Node::default() }
}

/// A source and its flags.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file, by its extension C++ (`cc`, `cpp`, `cxx`, `c++`, `C`), Rust (`rs`: the root of a
    /// crate), LLVM's text of either (`ll`); `Cargo.toml` stands for a project and all crates that
    /// it depends on; otherwise C.
    pub file: PathBuf,
    /// What the compiler is given for it: `-I`, `-D`, `-std`; or cargo: `--bin`, `--features`.
    pub flags: Vec<String>,
}

impl Source {
    fn has_extension(&self, of: &[&str]) -> bool {
        let extension = self.file.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| of.contains(&extension))
    }

    /// Whether LLVM's text says what it has.
    pub(crate) fn is_compiled(&self) -> bool {
        self.has_extension(&["cc", "cpp", "cxx", "c++", "C"]) || self.is_rust() || self.is_llvms() || self.is_manifest()
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.has_extension(&["rs"])
    }

    /// Of a cargo project.
    pub(crate) fn is_manifest(&self) -> bool {
        self.file.file_name().is_some_and(|name| name == "Cargo.toml")
    }

    pub(crate) fn is_llvms(&self) -> bool {
        self.has_extension(&["ll"])
    }
}
