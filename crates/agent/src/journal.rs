//! The system's journal, by its own protocol: a datagram of fields to a socket.
//!
//! Promises: nothing here blocks; a message that cannot be handed over is an error, for the caller
//! to count. Fields of more than one line are sent with their length. Refuses: messages beyond
//! 96 KiB; the journal takes those as files only.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// Bytes of a message.
const MAX_BYTES: usize = 96 << 10;

/// What happened, with the number by which `journalctl MESSAGE_ID=` finds its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A hang was reported.
    Hang,
    /// A hang is over.
    Recovered,
    /// Something was done about a hang.
    Action,
    /// A report or an action was left out.
    Suppressed,
    /// The configuration was read, or rejected.
    Configuration,
    /// The agent or its detection is not well.
    Trouble,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 6] =
        [Kind::Hang, Kind::Recovered, Kind::Action, Kind::Suppressed, Kind::Configuration, Kind::Trouble];

    /// Its number.
    pub fn message_id(self) -> &'static str {
        match self {
            Kind::Hang => "5d0c1f6c0b6d4e0f9a3f6f7f0f0a6b11",
            Kind::Recovered => "b1c8f7e24b3a4c0d8c6f1d0e7a5b9c22",
            Kind::Action => "2f7e9a4d6c1b4f3e8d5a0b9c8e7f6a33",
            Kind::Suppressed => "8e6d5c4b3a294f1e8d7c6b5a49382744",
            Kind::Configuration => "c3a1b2d4e5f64708a9bacbdcedfe0f55",
            Kind::Trouble => "71f0e2d3c4b54a6987786a5b4c3d2e66",
        }
    }

    /// How grave it is, by syslog's numbers.
    fn priority(self) -> &'static str {
        match self {
            Kind::Hang | Kind::Trouble => "3",
            Kind::Action | Kind::Suppressed => "4",
            Kind::Recovered | Kind::Configuration => "5",
        }
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Journal {
    socket: UnixDatagram,
    to: PathBuf,
}

impl Journal {
    /// One that sends to this socket, which need not be there yet.
    ///
    /// # Errors
    /// No socket can be made.
    pub fn new(to: &Path) -> io::Result<Journal> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Journal { socket, to: to.to_owned() })
    }

    /// Sends a message with these fields beside.
    ///
    /// # Errors
    /// `InvalidInput` for one that is too long; those of sending.
    pub fn send(&self, kind: Kind, message: &str, fields: &[(&str, &str)]) -> io::Result<()> {
        let mut bytes = Vec::new();
        let head = [
            ("MESSAGE", message),
            ("MESSAGE_ID", kind.message_id()),
            ("PRIORITY", kind.priority()),
            ("SYSLOG_IDENTIFIER", "orbit-agent"),
        ];
        head.iter().chain(fields).for_each(|(name, value)| put(&mut bytes, name, value));
        if bytes.len() > MAX_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long for the journal"));
        }
        match self.socket.send_to(&bytes, &self.to)? {
            n if n == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

fn put(bytes: &mut Vec<u8>, name: &str, value: &str) {
    bytes.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        bytes.push(b'\n');
        bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        bytes.push(b'=');
    }
    bytes.extend_from_slice(value.as_bytes());
    bytes.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::process::Command;

    /// Reads a message as the journal does.
    fn fields(mut bytes: &[u8]) -> BTreeMap<String, String> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let mut all = BTreeMap::new();
        while !bytes.is_empty() {
            let end = bytes.iter().position(|b| *b == b'\n').expect("a line");
            let (name, value);
            match bytes[..end].iter().position(|b| *b == b'=') {
                Some(at) => {
                    (name, value) = (text(&bytes[..at]), text(&bytes[at + 1..end]));
                    bytes = &bytes[end + 1..];
                }
                None => {
                    let length = u64::from_le_bytes(bytes[end + 1..end + 9].try_into().expect("eight")) as usize;
                    (name, value) = (text(&bytes[..end]), text(&bytes[end + 9..end + 9 + length]));
                    assert_eq!(bytes[end + 9 + length], b'\n');
                    bytes = &bytes[end + 10 + length..];
                }
            }
            assert!(name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_'), "{name}");
            all.insert(name, value);
        }
        all
    }

    #[test]
    fn fields_arrive_as_they_were_given() {
        let path = std::env::temp_dir().join(format!("orbit-journal-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let journal = Journal::new(&path).expect("a socket");
        assert!(journal.send(Kind::Hang, "nobody reads", &[]).is_err(), "no reader is no success");
        let reader = UnixDatagram::bind(&path).expect("a socket");
        journal
            .send(Kind::Hang, "thread 1 = waits\nfor lock b", &[("ORBIT_POLICY", "p"), ("ORBIT_X", "")])
            .expect("sent");
        let mut room = vec![0; MAX_BYTES];
        let n = reader.recv(&mut room).expect("a message");
        let got = fields(&room[..n]);
        assert_eq!(got["MESSAGE"], "thread 1 = waits\nfor lock b");
        assert_eq!((got["MESSAGE_ID"].as_str(), got["PRIORITY"].as_str()), (Kind::Hang.message_id(), "3"));
        assert_eq!((got["ORBIT_POLICY"].as_str(), got["ORBIT_X"].as_str()), ("p", ""));
        assert!(journal.send(Kind::Hang, &"x".repeat(MAX_BYTES), &[]).is_err());
        // A reader that does not read: sending does not wait.
        while journal.send(Kind::Trouble, "again", &[]).is_ok() {}
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn each_kind_has_a_number_of_its_own() {
        for (at, kind) in Kind::ALL.iter().enumerate() {
            let id = kind.message_id();
            assert!(id.len() == 32 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')), "{id}");
            assert!(Kind::ALL[..at].iter().all(|other| other.message_id() != id), "{kind:?}");
        }
    }

    #[test]
    fn a_real_journal_finds_the_message_by_its_number() {
        let socket = Path::new("/run/systemd/journal/socket");
        if !socket.exists() || Command::new("journalctl").arg("--version").output().is_err() {
            println!("SKIP: needs a running systemd-journald");
            return;
        }
        let mark = format!("orbit-test-{}-{:?}", std::process::id(), std::time::SystemTime::now());
        let journal = Journal::new(socket).expect("a socket");
        journal.send(Kind::Recovered, "a test", &[("ORBIT_TEST", &mark)]).expect("sent");
        let start = std::time::Instant::now();
        loop {
            let found = Command::new("journalctl")
                .args([
                    "-o",
                    "cat",
                    &format!("MESSAGE_ID={}", Kind::Recovered.message_id()),
                    &format!("ORBIT_TEST={mark}"),
                ])
                .output()
                .expect("journalctl");
            if String::from_utf8_lossy(&found.stdout).contains("a test") {
                return;
            }
            assert!(start.elapsed().as_secs() < 60, "not in the journal");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}
