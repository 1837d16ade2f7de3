//! The terminal, taken over for a full screen, and put back as it was however the program ends: by
//! itself, by an error, by a panic, or by SIGHUP, SIGINT, SIGQUIT or SIGTERM, which then end the
//! program as they always do.

use crossterm::{cursor, execute, terminal};
use orbit_linux::signals::{self, Action, Set};
use orbit_linux::terminal::Modes;
use orbit_linux::{poll, stream};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::Duration;

/// What undoes [`Taken::take`], for a signal's handler: ends a drawing that the terminal holds
/// back, shows the cursor, wraps lines, leaves the alternate screen.
const UNDO: &[u8] = b"\x1b[?2026l\x1b[?25h\x1b[?7h\x1b[?1049l";

/// Longest wait of a signal's handler for a terminal that takes nothing.
const PATIENCE: Duration = Duration::from_millis(500);

/// The terminal's modes from before. Set before the handlers are.
static BEFORE: OnceLock<Modes> = OnceLock::new();

/// The terminal in raw mode, on its alternate screen, without a cursor. Dropping the value puts it
/// back.
pub struct Taken(());

impl Taken {
    /// Takes the terminal that is standard input and output.
    pub fn take() -> io::Result<Taken> {
        let before_panic = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            before_panic(info);
        }));
        let modes = Modes::of(io::stdin().as_fd())?;
        BEFORE.get_or_init(|| modes);
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
            undo_on(signal)?;
        }
        terminal::enable_raw_mode()?;
        let taken = Taken(());
        execute!(io::stdout(), terminal::EnterAlternateScreen, terminal::DisableLineWrap, cursor::Hide)?;
        Ok(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        restore();
    }
}

/// Puts the terminal back; a failure to do so is ignored: there is no other output.
fn restore() {
    let _ = execute!(io::stdout(), cursor::Show, terminal::EnableLineWrap, terminal::LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

/// Has this signal put the terminal back before it ends the program; one that is ignored stays so.
fn undo_on(signal: i32) -> io::Result<()> {
    if Action::of(signal)?.address() == libc::SIG_IGN {
        return Ok(());
    }
    // The signal that is raised again, and a second one that comes meanwhile, end the program at
    // once.
    let flags = libc::SA_RESETHAND | libc::SA_NODEFER;
    // SAFETY: the handler has the signature without SA_SIGINFO and only does what a handler may.
    unsafe { Action::handler(undo as extern "C" fn(i32) as usize, flags, &Set::of([])).install(signal) }
}

/// The handler: no locks and no memory; the main thread may be in the middle of drawing.
extern "C" fn undo(signal: i32) {
    // SAFETY: standard input and output stay open while the terminal is taken.
    let (input, output) =
        unsafe { (BorrowedFd::borrow_raw(libc::STDIN_FILENO), BorrowedFd::borrow_raw(libc::STDOUT_FILENO)) };
    // The modes were set before the handler and are not changed any more.
    if let Some(modes) = BEFORE.get() {
        let _ = modes.set(input);
    }
    let mut terminal = [libc::pollfd { fd: libc::STDOUT_FILENO, events: libc::POLLOUT, revents: 0 }];
    if poll::poll(&mut terminal, Some(PATIENCE)).is_ok_and(|ready| ready == 1) {
        let _ = stream::write(output, UNDO);
    }
    signals::raise(signal);
}
