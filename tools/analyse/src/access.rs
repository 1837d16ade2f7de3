//! What an instruction reads and writes in memory.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register, UsedMemory,
};
use libc::user_regs_struct as Registers;

/// Bytes of the longest instruction.
pub(crate) const LONGEST: usize = 15;
/// Loads of at least this many bytes by the C library may go beyond what they are asked for.
const WIDE: u64 = 16;

/// An instruction, decoded once.
#[derive(Debug)]
pub(crate) struct Decoded {
    instruction: Instruction,
    uses: Vec<UsedMemory>,
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) address: u64,
    /// Bytes, at least 1.
    pub(crate) size: u64,
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Access {
    /// A vector load, which the C library lets go beyond an object's end.
    pub(crate) fn is_wide(self) -> bool {
        self.read && self.size >= WIDE
    }
}

impl Decoded {
    /// Nothing if these bytes begin with no instruction.
    pub(crate) fn of(code: &[u8], address: u64) -> Option<Decoded> {
        let instruction = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
        let uses = InstructionInfoFactory::new().info(&instruction).used_memory().to_vec();
        (!instruction.is_invalid()).then_some(Decoded { instruction, uses })
    }

    pub(crate) fn is_call(&self) -> bool {
        matches!(self.instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
    }

    pub(crate) fn is_system_call(&self) -> bool {
        self.instruction.mnemonic() == Mnemonic::Syscall
    }

    /// What it accesses with these registers, and how many of its accesses have an address that
    /// they do not say (gathers).
    pub(crate) fn accesses(&self, registers: &Registers) -> (Vec<Access>, usize) {
        let i = &self.instruction;
        let repeated = i.is_string_instruction() && (i.has_rep_prefix() || i.has_repne_prefix());
        if repeated && registers.rcx == 0 {
            return (Vec::new(), 0);
        }
        let mut out = Vec::new();
        let mut unknown = 0;
        for used in &self.uses {
            let (read, write) = match used.access() {
                OpAccess::Read | OpAccess::CondRead => (true, false),
                OpAccess::Write | OpAccess::CondWrite => (false, true),
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
                _ => continue,
            };
            let size = [used.memory_size().size(), i.memory_size().size()].into_iter().find(|&s| s != 0).unwrap_or(1);
            match used.virtual_address(0, |register, _, _| value(register, registers)) {
                Some(address) => out.push(Access { address, size: size as u64, read, write }),
                None => unknown += 1,
            }
        }
        (out, unknown)
    }
}

fn value(register: Register, r: &Registers) -> Option<u64> {
    let whole = match register.full_register() {
        Register::RAX => r.rax,
        Register::RBX => r.rbx,
        Register::RCX => r.rcx,
        Register::RDX => r.rdx,
        Register::RSI => r.rsi,
        Register::RDI => r.rdi,
        Register::RBP => r.rbp,
        Register::RSP => r.rsp,
        Register::R8 => r.r8,
        Register::R9 => r.r9,
        Register::R10 => r.r10,
        Register::R11 => r.r11,
        Register::R12 => r.r12,
        Register::R13 => r.r13,
        Register::R14 => r.r14,
        Register::R15 => r.r15,
        Register::FS => return Some(r.fs_base),
        Register::GS => return Some(r.gs_base),
        Register::CS | Register::DS | Register::ES | Register::SS => return Some(0),
        _ => return None,
    };
    Some(match register.size() {
        8 => whole,
        size => whole & ((1 << (size * 8)) - 1),
    })
}

/// What the kernel accessed for a system call that the task made, with the registers ahead of it
/// and its result.
pub(crate) fn of_call(r: &Registers, result: i64) -> Option<Access> {
    let size = u64::try_from(result).ok().filter(|&n| n > 0)?;
    let (read, write) = match r.rax as i64 {
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_sendto => (true, false),
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_recvfrom => (false, true),
        _ => return None,
    };
    Some(Access { address: r.rsi, size: size.min(r.rdx), read, write })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers() -> Registers {
        // SAFETY: all-zero bytes are a value of this struct of integers.
        let r: Registers = unsafe { std::mem::zeroed() };
        Registers { rdi: 0x1000, rsi: 0x2000, rcx: 3, rsp: 0x9000, fs_base: 0x7000, ..r }
    }

    fn accesses(code: &[u8], r: &Registers) -> Vec<(u64, u64, bool, bool)> {
        let (found, unknown) = Decoded::of(code, 0x400000).expect("an instruction").accesses(r);
        assert_eq!(unknown, 0);
        found.into_iter().map(|a| (a.address, a.size, a.read, a.write)).collect()
    }

    #[test]
    fn addresses_sizes_and_directions() {
        let r = registers();
        // mov eax,[rdi+4]; mov [rdi+rcx*8],rax; add dword [rsi],1; mov rax,fs:0x28; lea rax,[rdi]
        assert_eq!(accesses(&[0x8b, 0x47, 4], &r), [(0x1004, 4, true, false)]);
        assert_eq!(accesses(&[0x48, 0x89, 0x04, 0xcf], &r), [(0x1018, 8, false, true)]);
        assert_eq!(accesses(&[0x83, 0x06, 1], &r), [(0x2000, 4, true, true)]);
        assert_eq!(accesses(&[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0], &r), [(0x7028, 8, true, false)]);
        assert_eq!(accesses(&[0x48, 0x8d, 0x07], &r), []);
        // mov eax,[rip+0x10]
        assert_eq!(accesses(&[0x8b, 0x05, 0x10, 0, 0, 0], &r), [(0x400016, 4, true, false)]);
    }

    #[test]
    fn a_repeated_move_is_one_element_a_step() {
        let mut r = registers();
        let mut moved = accesses(&[0xf3, 0xa4], &r);
        moved.sort();
        assert_eq!(moved, [(0x1000, 1, false, true), (0x2000, 1, true, false)]);
        r.rcx = 0;
        assert_eq!(accesses(&[0xf3, 0xa4], &r), []);
    }
}
