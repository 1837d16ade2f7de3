//! Which calls of the kernel a service there may make: those that read, keep or count. One that
//! acts (sends a signal, writes to a program's memory, changes a call's result) has no guard: such
//! a program is refused before the kernel sees it. What a service wants done it asks for by
//! `orbit_ask`.

use aya_obj::Object;
use aya_obj::generated::bpf_insn;

/// By the numbers of `linux/bpf.h`: maps, time, the current task, memory that is read, stacks, ring
/// buffers, loops, text.
const ALLOWED: &[i32] = &[
    1, 2, 3, 4, 5, 7, 8, 14, 15, 16, 22, 27, 35, 37, 42, 45, 55, 56, 67, 80, 87, 88, 89, 105, 106, 112, 113, 114, 115,
    118, 120, 123, 125, 130, 131, 132, 133, 134, 141, 153, 154, 156, 157, 158, 160, 164, 165, 173, 175, 181, 182, 195,
    208,
];
/// The instruction that calls, and what its source says: a call of the kernel by number, of another
/// function of the object.
const CALL: u8 = 0x85;
const BY_NUMBER: u8 = 0;
const OF_THE_OBJECT: u8 = 1;

/// What is wrong with a function, if it calls what it may not.
fn judge(name: &str, instructions: &[bpf_insn]) -> Result<(), String> {
    for (nth, instruction) in instructions.iter().enumerate().filter(|(_, instruction)| instruction.code == CALL) {
        match instruction.src_reg() {
            OF_THE_OBJECT => {}
            BY_NUMBER if ALLOWED.contains(&instruction.imm) => {}
            // A reference to a function that is linked in has this before it is resolved.
            BY_NUMBER if instruction.imm == -1 => {}
            _ => {
                return Err(format!(
                    "instruction {nth} of {name} calls function {} of the kernel, which services may not: they read, \
                     and act by orbit_ask only",
                    instruction.imm
                ));
            }
        }
    }
    Ok(())
}

/// Judges all functions of an object, as the loader reads it.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check(object: &[u8]) -> Result<(), String> {
    let object = Object::parse(object).map_err(|error| format!("no BPF object: {error}"))?;
    object.functions.values().try_for_each(|function| judge(&function.name, &function.instructions))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(source: u8, number: i32) -> bpf_insn {
        // SAFETY: all-zero bytes are a value of this struct of integers.
        let mut instruction: bpf_insn = unsafe { std::mem::zeroed() };
        (instruction.code, instruction.imm) = (CALL, number);
        instruction.set_src_reg(source);
        instruction
    }

    #[test]
    fn what_reads_passes_and_what_acts_does_not() {
        let (now, output, signal, write, of_a_module) =
            (call(0, 5), call(0, 130), call(0, 109), call(0, 36), call(2, 1234));
        assert!(judge("tick", &[now, output, call(1, 7)]).is_ok());
        for bad in [signal, write, of_a_module, call(0, 0), call(0, 100_000)] {
            let why = judge("tick", &[now, bad]).expect_err("it acts");
            assert!(why.contains("instruction 1 of tick"), "{why}");
        }
        assert!(check(crate::objects::CPU_KERNEL).is_ok());
    }
}
