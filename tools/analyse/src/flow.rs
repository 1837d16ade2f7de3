//! Where a pointer of a function in LLVM's text comes from: a field, a global variable, a parameter
//! or a local variable. Without optimization each variable has a place of its own, so that loads
//! and stores say it.

use crate::ir::{name, structure};
use std::collections::{BTreeMap, BTreeSet};

/// What a pointer is or leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// A class and the number of its field.
    Field(String, u32),
    Global(String),
    Parameter(usize),
    /// By the register that has its address.
    Local(String),
}

/// An operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Register(String),
    Global(String),
    Other,
}

#[derive(Debug)]
enum Made {
    Local,
    Parameter(usize),
    Field(String, u32),
    /// From one of these.
    From(Vec<Value>),
}

/// The registers of a function.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    made: BTreeMap<String, Made>,
    /// What is stored where.
    pub(crate) stores: Vec<(Value, Value)>,
    /// The same by the register that has the place: numbers of stores.
    stored: BTreeMap<String, Vec<usize>>,
}

/// Parts of a list, at commas that no bracket or quote has, up to a closing parenthesis.
fn parts(list: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut start) = (0_u32, false, 0);
    let mut found = Vec::new();
    for (at, c) in list.char_indices() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            ')' if depth == 0 => {
                found.push(&list[start..at]);
                return found;
            }
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' | '>' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                found.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&list[start..]);
    found
}

/// The value at the end of an operand, which has its type before it.
fn value(operand: &str) -> Value {
    let operand = operand.split(" to ").next().unwrap_or(operand).trim();
    if let Some(at) = operand.find('@') {
        return Value::Global(name(&operand[at + 1..]).0.to_owned());
    }
    match operand.rsplit(' ').next().and_then(|last| last.strip_prefix('%')) {
        Some(register) if !operand.ends_with('"') && !operand.ends_with('*') => Value::Register(register.to_owned()),
        _ => Value::Other,
    }
}

/// The arguments of a call or the parameters of a function: what follows its name.
pub(crate) fn arguments(text: &str, callee: &str) -> Vec<Value> {
    let quoted = format!("\"{callee}\"(");
    let plain = format!("{callee}(");
    let list = text.split_once(&quoted).or_else(|| text.split_once(&plain)).map(|(_, list)| list);
    list.map_or_else(Vec::new, |list| parts(list).into_iter().map(value).collect())
}

impl Flow {
    /// Of a function with these parameters.
    pub(crate) fn of(parameters: Vec<Value>) -> Flow {
        let made = parameters.into_iter().enumerate().map(|(at, parameter)| match parameter {
            Value::Register(register) => (register, Made::Parameter(at)),
            // Before LLVM 15 they had numbers that need not be written.
            _ => (at.to_string(), Made::Parameter(at)),
        });
        Flow { made: made.collect(), ..Flow::default() }
    }

    /// Takes down an instruction; of a call its arguments are given.
    pub(crate) fn add(&mut self, code: &str, called: Option<&[Value]>) {
        let code = code.trim();
        if let Some(rest) = code.strip_prefix("store ") {
            let list = parts(rest);
            if let [what, to, ..] = list[..] {
                let (what, to) = (value(what), value(to));
                if let Value::Register(register) = &to {
                    self.stored.entry(register.clone()).or_default().push(self.stores.len());
                }
                self.stores.push((what, to));
            }
            return;
        }
        let Some((register, rest)) = code.strip_prefix('%').and_then(|rest| rest.split_once(" = ")) else { return };
        let made = if let Some(arguments) = called {
            // What a member returns is the object's, or leads to it.
            Made::From(arguments.iter().find(|value| **value != Value::Other).cloned().into_iter().collect())
        } else {
            let (operation, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            match operation {
                "alloca" => Made::Local,
                "getelementptr" => element(rest),
                "load" => Made::From(parts(rest).into_iter().skip(1).take(1).map(value).collect()),
                "bitcast" | "freeze" => Made::From(vec![value(rest)]),
                "select" => Made::From(parts(rest).into_iter().skip(1).map(value).collect()),
                "phi" => {
                    let pairs = rest.split('[').skip(1).filter_map(|pair| pair.split(',').next());
                    Made::From(pairs.map(|of| value(&format!("ptr {}", of.trim()))).collect())
                }
                _ => return,
            }
        };
        self.made.insert(register.to_owned(), made);
    }

    /// What a value is or leads to; nothing where it cannot be seen.
    pub(crate) fn origins(&self, value: &Value) -> BTreeSet<Origin> {
        let mut found = BTreeSet::new();
        let (mut seen, mut left) = (BTreeSet::new(), vec![value]);
        while let Some(value) = left.pop() {
            let register = match value {
                Value::Global(name) => {
                    found.insert(Origin::Global(name.clone()));
                    continue;
                }
                Value::Register(register) if seen.insert(register) => register,
                _ => continue,
            };
            match self.made.get(register) {
                Some(Made::Field(class, field)) => {
                    found.insert(Origin::Field(class.clone(), *field));
                }
                Some(Made::Parameter(at)) => {
                    found.insert(Origin::Parameter(*at));
                }
                Some(Made::From(values)) => left.extend(values),
                Some(Made::Local) => match self.stored.get(register) {
                    Some(stored) => left.extend(stored.iter().map(|at| &self.stores[*at].0)),
                    None => {
                        found.insert(Origin::Local(register.clone()));
                    }
                },
                None => {}
            }
        }
        found
    }
}

/// The address of a field, or of what is in a class of the library or an array: as its whole.
fn element(rest: &str) -> Made {
    let list = parts(rest);
    let field = || {
        let class =
            structure(list.first()?).filter(|class| !class.starts_with("std::") && !class.contains("__gnu_cxx"))?;
        let number = list.get(3)?.trim().rsplit(' ').next()?.parse().ok()?;
        Some(Made::Field(class, number))
    };
    field().unwrap_or_else(|| Made::From(list.get(1).map(|base| value(base)).into_iter().collect()))
}

/// The fields that an instruction addresses.
pub(crate) fn member(of: &str) -> Option<(String, u32)> {
    match element(of) {
        Made::Field(class, field) => Some((class, field)),
        _ => None,
    }
}
