//! The kernel half's programs, and the two ways of attaching them.
//!
//! Owns: loading. Where the kernel has probes that come and go many at a time
//! ([`orbit_linux::uprobes`]) those are used, since they are out of the program before anybody
//! waits for anything; else one by one.

use crate::keeper::{How, Keeper, Link, Token};
use crate::{CodeFile, Error};
use aya::programs::UProbe;
use aya::{Ebpf, EbpfLoader};
use aya_obj::Object;
use aya_obj::btf::Btf;
use orbit_linux::bpf::{self, Instruction};
use orbit_linux::uprobes;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/uprobe.bpf.o")));

pub(crate) const LOADING: &str = "loading the kernel half of sections by name";

/// A program of the kernel half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Entered,
    Left,
    /// It carries out the return it is at.
    Returned,
}
const ALL: [Program; 3] = [Program::Entered, Program::Left, Program::Returned];

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::Entered => "entered",
            Program::Left => "left",
            Program::Returned => "returned",
        }
    }
}

/// The programs.
pub(crate) struct Programs {
    /// Those by aya, and all maps.
    ebpf: Ebpf,
    /// Those for many places at a time, if there can be such, by number.
    many: Option<[Option<OwnedFd>; 3]>,
    /// One for many places that does nothing, where there are such.
    nothing: Option<OwnedFd>,
    /// How they are attached.
    how: How,
    /// A probe may carry out a return.
    pub(crate) returns: bool,
}

impl Programs {
    /// Loads them, with these numbers for the variables that are known before.
    pub(crate) fn load(globals: &[(&str, u64)]) -> Result<Programs, Error> {
        let mut loader = EbpfLoader::new();
        for (name, value) in globals {
            loader.override_global(name, value, true);
        }
        let mut ebpf = loader.load(&OBJECT.0).map_err(|e| Error::of(LOADING, &e))?;
        let many = uprobes::probe().is_yes().then(|| load_many(&ebpf, globals)).transpose()?;
        let load_nothing = || uprobes::load(&bpf::NOTHING).map_err(|e| Error::of(LOADING, &e));
        let nothing = many.is_some().then(load_nothing).transpose()?;
        let returns = match &many {
            Some(programs) => programs[Program::Returned as usize].is_some(),
            None => {
                for program in [Program::Entered, Program::Left] {
                    one(&mut ebpf, program)?.load().map_err(|e| Error::of(LOADING, &e))?;
                }
                one(&mut ebpf, Program::Returned)?.load().is_ok()
            }
        };
        let one = || uprobes::kind().map(How::One).map_err(|e| Error::of("probing for uprobes", &e));
        let how = if many.is_some() { How::Many } else { one()? };
        Ok(Programs { ebpf, many, nothing, how, returns })
    }

    /// A map of theirs.
    pub(crate) fn map(&mut self, name: &str) -> Result<aya::maps::Map, Error> {
        self.ebpf.take_map(name).ok_or_else(|| Error::Failed(format!("the kernel half lacks map \"{name}\"")))
    }

    /// Probes places of a file in a process, each given by its offset in bytes and its cookie; see
    /// [`Keeper::attach`].
    pub(crate) fn attach(
        &mut self,
        keeper: &mut Keeper,
        program: Program,
        pid: i32,
        file: &CodeFile,
        places: &[(u64, u64)],
        note: &dyn Fn(Token),
    ) -> Result<Vec<Link>, Error> {
        let program = match &self.many {
            Some(many) => {
                let Some(program) = &many[program as usize] else { return Ok(Vec::new()) };
                program.as_fd()
            }
            None => one(&mut self.ebpf, program)?.fd().map_err(|e| Error::of(LOADING, &e))?.as_fd(),
        };
        keeper
            .attach((program, self.how), pid, file, places, note)
            .map_err(|e| Error::of(&format!("probing {}", file.name().display()), &e))
    }

    /// Has the kernel take breakpoints at these places of a file, which are probed in a process,
    /// away from its copies: when any probe goes, it asks the others at each place whom they are
    /// for. One by one each is taken away from a copy that hits it.
    pub(crate) fn free_copies(
        &self,
        keeper: &mut Keeper,
        pid: i32,
        file: &CodeFile,
        offsets: &[u64],
    ) -> io::Result<()> {
        let Some(nothing) = &self.nothing else { return Ok(()) };
        let places: Vec<(u64, u64)> = offsets.iter().map(|offset| (*offset, 0)).collect();
        // For the process itself, so that no other process is probed with it.
        keeper.attach((nothing.as_fd(), self.how), pid, file, &places, &|_| ()).map(drop)
    }
}

fn one(ebpf: &mut Ebpf, program: Program) -> Result<&mut UProbe, Error> {
    let name = program.name();
    let lacks = || Error::Failed(format!("the kernel half lacks program \"{name}\""));
    let program = ebpf.program_mut(name).ok_or_else(lacks)?;
    program.try_into().map_err(|_| Error::Failed(format!("program \"{name}\" of the kernel half is of another kind")))
}

/// Loads the programs for many places, with the maps that are there: aya knows no such programs.
/// The last may be rejected.
fn load_many(ebpf: &Ebpf, globals: &[(&str, u64)]) -> Result<[Option<OwnedFd>; 3], Error> {
    fn failed<E: std::error::Error + 'static>(e: E) -> Error {
        Error::of(LOADING, &e)
    }
    let mut object = Object::parse(&OBJECT.0).map_err(failed)?;
    let globals: Vec<(&str, [u8; 8])> = globals.iter().map(|(name, value)| (*name, value.to_ne_bytes())).collect();
    let globals: HashMap<&str, (&[u8], bool)> = globals.iter().map(|(n, bytes)| (*n, (&bytes[..], true))).collect();
    object.patch_map_data(globals).map_err(failed)?;
    object.relocate_btf(&Btf::from_sys_fs().map_err(failed)?).map_err(failed)?;
    let sections: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    let maps: HashMap<&str, RawFd> = ebpf
        .maps()
        .filter_map(|(name, map)| match map {
            aya::maps::Map::Array(m) | aya::maps::Map::HashMap(m) | aya::maps::Map::PerCpuArray(m) => {
                Some((name, m.fd().as_fd().as_raw_fd()))
            }
            _ => None,
        })
        .collect();
    let known = object.maps.clone();
    let known = known.iter().filter_map(|(name, map)| Some((name.as_str(), *maps.get(name.as_str())?, map)));
    object.relocate_maps(known, &sections).map_err(failed)?;
    object.relocate_calls(&sections).map_err(failed)?;
    let load = |program: Program| {
        let name = program.name();
        let lacks = || Error::Failed(format!("the kernel half lacks program \"{name}\""));
        let function = object.programs.get(name).map(aya_obj::Program::function_key);
        let function = function.and_then(|key| object.functions.get(&key)).ok_or_else(lacks)?;
        let code: Vec<Instruction> = function.instructions.iter().map(bytes).collect();
        uprobes::load(&code).map_err(|e| Error::of(LOADING, &e))
    };
    let [entered, left, returned] = ALL.map(load);
    Ok([Some(entered?), Some(left?), returned.ok()])
}

/// An instruction as the kernel has it.
fn bytes(i: &aya_obj::generated::bpf_insn) -> Instruction {
    let [off_low, off_high] = i.off.to_ne_bytes();
    let [a, b, c, d] = i.imm.to_ne_bytes();
    let registers = i.dst_reg() | i.src_reg() << 4;
    [i.code, registers, off_low, off_high, a, b, c, d]
}
