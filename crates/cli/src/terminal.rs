//! The terminal, taken over for a full screen, and put back as it was however the program ends: by itself, by an error, by a
//! panic, or by SIGHUP, SIGINT, SIGQUIT or SIGTERM, which then end the program as they always do.

use crossterm::{cursor, execute, terminal};
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// What undoes [`Taken::take`], for a signal's handler: ends a drawing that the terminal holds back, shows the cursor, wraps
/// lines, leaves the alternate screen.
const UNDO: &[u8] = b"\x1b[?2026l\x1b[?25h\x1b[?7h\x1b[?1049l";

/// Longest wait of a signal's handler for a terminal that takes nothing, milliseconds.
const PATIENCE_MS: i32 = 500;

/// The terminal's modes from before. Set before the handlers are.
static BEFORE: OnceLock<libc::termios> = OnceLock::new();

/// The terminal in raw mode, on its alternate screen, without a cursor. Dropping the value puts it back.
pub struct Taken(());

impl Taken {
    /// Takes the terminal that is standard input and output.
    pub fn take() -> io::Result<Taken> {
        let before_panic = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            before_panic(info);
        }));
        let mut modes = MaybeUninit::uninit();
        // SAFETY: the modes are written to a live local.
        if unsafe { libc::tcgetattr(libc::STDIN_FILENO, modes.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above has filled it in.
        BEFORE.get_or_init(|| unsafe { modes.assume_init() });
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

/// Puts the terminal back; what cannot be put back has nobody to tell.
fn restore() {
    let _ = execute!(io::stdout(), cursor::Show, terminal::EnableLineWrap, terminal::LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

/// Has this signal put the terminal back before it ends the program; one that is ignored stays so.
fn undo_on(signal: i32) -> io::Result<()> {
    // SAFETY: all zeroes is a valid action; both calls get live locals, and the handler only does what a handler may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &mut action) != 0 {
            return Err(io::Error::last_os_error());
        }
        if action.sa_sigaction == libc::SIG_IGN {
            return Ok(());
        }
        action = std::mem::zeroed();
        action.sa_sigaction = undo as extern "C" fn(i32) as usize;
        // The signal that is raised again, and a second one that comes meanwhile, end the program at once.
        action.sa_flags = libc::SA_RESETHAND | libc::SA_NODEFER;
        if libc::sigaction(signal, &action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The handler: no locks and no memory; the main thread may be in the middle of drawing.
extern "C" fn undo(signal: i32) {
    // SAFETY: system calls that a handler may make, with live locals and a constant. The modes were set before the handler.
    unsafe {
        if let Some(modes) = BEFORE.get() {
            libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, modes);
        }
        let mut terminal = libc::pollfd { fd: libc::STDOUT_FILENO, events: libc::POLLOUT, revents: 0 };
        if libc::poll(&mut terminal, 1, PATIENCE_MS) == 1 {
            libc::write(libc::STDOUT_FILENO, UNDO.as_ptr().cast(), UNDO.len());
        }
        libc::raise(signal);
    }
}
