//! The kernel half's programs, and the two ways of attaching them.
//!
//! Owns: loading. Where the kernel has probes that come and go many at a time ([`orbit_linux::uprobes`]) those are used, since they are out of the program
//! before anybody waits for anything; else one by one, by aya.

use crate::Error;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope};
use aya::programs::{ProgramError, UProbe};
use aya::{Ebpf, EbpfLoader};
use aya_obj::Object;
use aya_obj::btf::Btf;
use orbit_linux::bpf::Instruction;
use orbit_linux::uprobes;
use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;

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

/// Probes at one or more places of a file; they go when it is dropped.
#[derive(Debug)]
pub(crate) enum Link {
    Many(#[expect(dead_code, reason = "is closed")] OwnedFd),
    One(#[expect(dead_code, reason = "is dropped")] UProbeLink),
}

/// The programs.
pub(crate) struct Programs {
    /// Those by aya, and all maps.
    ebpf: Ebpf,
    /// Those for many places at a time, if there can be such, by number.
    many: Option<[Option<OwnedFd>; 3]>,
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
        let returns = match &many {
            Some(programs) => programs[Program::Returned as usize].is_some(),
            None => {
                for program in [Program::Entered, Program::Left] {
                    one(&mut ebpf, program)?.load().map_err(|e| Error::of(LOADING, &e))?;
                }
                one(&mut ebpf, Program::Returned)?.load().is_ok()
            }
        };
        Ok(Programs { ebpf, many, returns })
    }

    /// A map of theirs.
    pub(crate) fn map(&mut self, name: &str) -> Result<aya::maps::Map, Error> {
        self.ebpf.take_map(name).ok_or_else(|| Error::Failed(format!("the kernel half lacks map \"{name}\"")))
    }

    /// Probes places of a file in a process, each given by its offset in bytes and its cookie.
    pub(crate) fn attach(
        &mut self,
        program: Program,
        pid: NonZeroU32,
        file: &Path,
        places: &[(u64, u64)],
    ) -> Result<Vec<Link>, Error> {
        let probing = || format!("probing {}", file.display());
        if let Some(many) = &self.many {
            let (Some(program), false) = (&many[program as usize], places.is_empty()) else { return Ok(Vec::new()) };
            return match uprobes::attach(program.as_fd(), file, places, pid.get() as i32) {
                Ok(link) => Ok(vec![Link::Many(link)]),
                Err(e) => Err(Error::of(&probing(), &e)),
            };
        }
        let program = one(&mut self.ebpf, program)?;
        let mut links = Vec::new();
        for &(offset, cookie) in places {
            let location = UProbeAttachLocation::AbsoluteOffset(offset);
            let point = UProbeAttachPoint { location, cookie: Some(cookie) };
            let link = program
                .attach(point, file, UProbeScope::OneProcess(pid))
                .and_then(|id| program.take_link(id))
                .map_err(|e: ProgramError| Error::of(&probing(), &e))?;
            links.push(Link::One(link));
        }
        Ok(links)
    }
}

fn one(ebpf: &mut Ebpf, program: Program) -> Result<&mut UProbe, Error> {
    let name = program.name();
    let lacks = || Error::Failed(format!("the kernel half lacks program \"{name}\""));
    let program = ebpf.program_mut(name).ok_or_else(lacks)?;
    program.try_into().map_err(|_| Error::Failed(format!("program \"{name}\" of the kernel half is of another kind")))
}

/// Loads the programs for many places, with the maps that are there: aya knows no such programs. The last may be refused.
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
