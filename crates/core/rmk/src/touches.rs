//! What a command touches: [`Touches`]. Whoever may only read is not to change a program, and what
//! is in its memory and files is not read by accident.

use crate::command::Command;

/// The most that a command touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touches {
    /// What the system knows of programs: states, times, counts, names, addresses. Counters count
    /// as such.
    Facts,
    /// What a program holds: bytes of its memory and files.
    Contents,
    /// The program, its files, or the machine.
    Changes,
}

impl Command {
    /// Its name, as [`crate::PinKind::operations`] lists it.
    pub fn name(&self) -> &'static str {
        self.described().0
    }

    /// What it touches.
    pub fn touches(&self) -> Touches {
        self.described().1
    }

    fn described(&self) -> (&'static str, Touches) {
        match self {
            Command::CounterOpen { .. } => ("CounterOpen", Touches::Facts),
            Command::CounterStart { .. } => ("CounterStart", Touches::Facts),
            Command::CounterStop { .. } => ("CounterStop", Touches::Facts),
            Command::CounterRead { .. } => ("CounterRead", Touches::Facts),
            Command::CounterWrite { .. } => ("CounterWrite", Touches::Facts),
            Command::CounterClose { .. } => ("CounterClose", Touches::Facts),
            Command::OverflowArm { .. } => ("OverflowArm", Touches::Changes),
            Command::OverflowDisarm { .. } => ("OverflowDisarm", Touches::Changes),
            Command::BreakpointSet { .. } => ("BreakpointSet", Touches::Changes),
            Command::BreakpointClear { .. } => ("BreakpointClear", Touches::Changes),
            Command::InterruptCounts => ("InterruptCounts", Touches::Facts),
            Command::SignalIntercept { .. } => ("SignalIntercept", Touches::Changes),
            Command::SignalDecide { .. } => ("SignalDecide", Touches::Changes),
            Command::SignalRelease { .. } => ("SignalRelease", Touches::Changes),
            Command::SignalSend { .. } => ("SignalSend", Touches::Changes),
            Command::MemoryRead { .. } => ("MemoryRead", Touches::Contents),
            Command::MemoryWrite { .. } => ("MemoryWrite", Touches::Changes),
            Command::MemoryMap { .. } => ("MemoryMap", Touches::Facts),
            Command::PagesWatch { .. } => ("PagesWatch", Touches::Changes),
            Command::PagesCollect { .. } => ("PagesCollect", Touches::Changes),
            Command::PagesForget { .. } => ("PagesForget", Touches::Changes),
            Command::PagesSet { .. } => ("PagesSet", Touches::Changes),
            Command::CpuStates => ("CpuStates", Touches::Facts),
            Command::ThreadTimes { .. } => ("ThreadTimes", Touches::Facts),
            Command::HeartbeatStart { .. } => ("HeartbeatStart", Touches::Changes),
            Command::HeartbeatStop => ("HeartbeatStop", Touches::Changes),
            Command::Sockets { .. } => ("Sockets", Touches::Facts),
            Command::SocketHolders { .. } => ("SocketHolders", Touches::Facts),
            Command::CallsNow { .. } => ("CallsNow", Touches::Facts),
            Command::OpenFiles { .. } => ("OpenFiles", Touches::Facts),
            Command::FileRead { .. } => ("FileRead", Touches::Contents),
            Command::FileWrite { .. } => ("FileWrite", Touches::Changes),
            Command::FileSeek { .. } => ("FileSeek", Touches::Changes),
            Command::Channels { .. } => ("Channels", Touches::Facts),
            Command::ChannelWrite { .. } => ("ChannelWrite", Touches::Changes),
            Command::CallIntercept { .. } => ("CallIntercept", Touches::Changes),
            Command::CallDecide { .. } => ("CallDecide", Touches::Changes),
            Command::CallRelease { .. } => ("CallRelease", Touches::Changes),
            Command::FatalHold { .. } => ("FatalHold", Touches::Changes),
            Command::CheckpointTake { .. } => ("CheckpointTake", Touches::Changes),
            Command::CheckpointList { .. } => ("CheckpointList", Touches::Facts),
            Command::CheckpointRestore { .. } => ("CheckpointRestore", Touches::Changes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Touches;
    use crate::command::Command;

    #[test]
    fn names_are_those_of_the_commands() {
        let commands = [
            (Command::CpuStates, Touches::Facts),
            (Command::Sockets { pid: 1 }, Touches::Facts),
            (Command::MemoryRead { pid: 1, address: 0, length: 1 }, Touches::Contents),
            (Command::SignalSend { pid: 1, signal: 9 }, Touches::Changes),
        ];
        for (command, touches) in commands {
            assert!(format!("{command:?}").starts_with(command.name()), "{command:?}");
            assert_eq!(command.touches(), touches, "{command:?}");
        }
    }
}
