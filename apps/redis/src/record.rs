//! One entry of the slow log, and its bytes.
//!
//! The same bytes travel both ways: main writes them into the ring that the orbit reads, the orbit
//! pushes them back to answer a query. What comes back is read with every length checked, for an
//! orbit may send anything.
//!
//! ```text
//! id u64 | unix time i64 | microseconds i64 | fields u32 | fields times: length u32, bytes
//! the fields: client address, client name, arguments
//! ```

/// Arguments that an entry holds, as in Redis.
pub const MAX_ARGUMENTS: usize = 32;
/// Bytes of an argument that an entry holds, as in Redis.
pub const MAX_ARGUMENT: usize = 128;
/// Bytes of a client's address or name that an entry holds.
const MAX_CLIENT_TEXT: usize = 256;
/// Bytes of an argument with the note that it was cut.
const MAX_CUT: usize = MAX_ARGUMENT + 32;
/// No entry has more bytes than this.
pub const MAX_RECORD: usize = 28 + 2 * (4 + MAX_CLIENT_TEXT) + MAX_ARGUMENTS * (4 + MAX_CUT);

const HEAD: usize = 28;
const MICROS_AT: usize = 16;

/// An entry, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Unique, rising by one from entry to entry.
    pub id: u64,
    /// When the command ran, seconds since 1970.
    pub time: i64,
    /// How long it ran, microseconds.
    pub micros: i64,
    /// The client's address, empty if not known.
    pub address: Vec<u8>,
    /// The client's name, empty if it has none.
    pub name: Vec<u8>,
    /// The command and its arguments, cut short as Redis does.
    pub args: Vec<Vec<u8>>,
}

/// The bytes of one entry in the making; its memory is used again for the next.
#[derive(Default)]
pub struct Draft {
    bytes: Vec<u8>,
    fields: u32,
}

impl Draft {
    /// Begins an entry, with id 0.
    pub fn begin(&mut self, time: i64, micros: i64, address: &[u8], name: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(&0u64.to_ne_bytes());
        self.bytes.extend_from_slice(&time.to_ne_bytes());
        self.bytes.extend_from_slice(&micros.to_ne_bytes());
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.fields = 0;
        self.field(&address[..address.len().min(MAX_CLIENT_TEXT)]);
        self.field(&name[..name.len().min(MAX_CLIENT_TEXT)]);
    }

    fn field(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(&(bytes.len() as u32).to_ne_bytes());
        self.bytes.extend_from_slice(bytes);
        self.fields += 1;
        self.bytes[HEAD - 4..HEAD].copy_from_slice(&self.fields.to_ne_bytes());
    }

    /// Adds an argument that is short enough already.
    pub fn cut_argument(&mut self, bytes: &[u8]) {
        if (self.fields as usize) < 2 + MAX_ARGUMENTS {
            self.field(&bytes[..bytes.len().min(MAX_CUT)]);
        }
    }

    /// Adds an argument, cut to [`MAX_ARGUMENT`] bytes with a note of how many more there were.
    pub fn argument(&mut self, bytes: &[u8]) {
        match bytes.len().checked_sub(MAX_ARGUMENT) {
            None | Some(0) => self.cut_argument(bytes),
            Some(more) => {
                let mut cut = bytes[..MAX_ARGUMENT].to_vec();
                cut.extend_from_slice(format!("... ({more} more bytes)").as_bytes());
                self.cut_argument(&cut);
            }
        }
    }

    /// Sets the id.
    pub fn set_id(&mut self, id: u64) {
        self.bytes[..8].copy_from_slice(&id.to_ne_bytes());
    }

    /// Sets how long the command ran.
    pub fn set_micros(&mut self, micros: i64) {
        self.bytes[MICROS_AT..MICROS_AT + 8].copy_from_slice(&micros.to_ne_bytes());
    }

    /// The entry's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Entry {
    /// Appends the entry's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut draft = Draft::default();
        draft.begin(self.time, self.micros, &self.address, &self.name);
        draft.set_id(self.id);
        for arg in &self.args {
            draft.cut_argument(arg);
        }
        out.extend_from_slice(draft.bytes());
    }

    /// Takes one entry off the front of `bytes`; `None` if they are not one.
    pub fn decode(bytes: &mut &[u8]) -> Option<Entry> {
        let mut entry = Entry::default();
        (entry.id, entry.time, entry.micros) = read(bytes, |at, field| match at {
            0 => entry.address = field.to_vec(),
            1 => entry.name = field.to_vec(),
            _ => entry.args.push(field.to_vec()),
        })?;
        Some(entry)
    }
}

/// How many entries `bytes` are, and the id of the last; `None` if they are anything else, or if
/// their ids do not fall from below `before` on.
pub fn check(mut bytes: &[u8], mut before: u64) -> Option<(u64, u64)> {
    let mut count = 0;
    while !bytes.is_empty() {
        let (id, ..) = read(&mut bytes, |_, _| ())?;
        if id >= before {
            return None;
        }
        (count, before) = (count + 1, id);
    }
    Some((count, before))
}

/// Takes one entry off the front of `bytes`: number, time and duration, and each field with its
/// place.
fn read(bytes: &mut &[u8], mut each: impl FnMut(usize, &[u8])) -> Option<(u64, i64, i64)> {
    let id = u64::from_ne_bytes(take(bytes)?);
    let time = i64::from_ne_bytes(take(bytes)?);
    let micros = i64::from_ne_bytes(take(bytes)?);
    let fields = u32::from_ne_bytes(take(bytes)?) as usize;
    if !(2..=2 + MAX_ARGUMENTS).contains(&fields) {
        return None;
    }
    for at in 0..fields {
        let len = u32::from_ne_bytes(take(bytes)?) as usize;
        if len > if at < 2 { MAX_CLIENT_TEXT } else { MAX_CUT } {
            return None;
        }
        let (field, rest) = bytes.split_at_checked(len)?;
        *bytes = rest;
        each(at, field);
    }
    Some((id, time, micros))
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_decodes_again() {
        let entry = Entry {
            id: 7,
            time: 1_700_000_000,
            micros: 12_345,
            address: b"127.0.0.1:1".to_vec(),
            name: b"me".to_vec(),
            args: vec![b"SET".to_vec(), b"k".to_vec(), vec![0xff; 128]],
        };
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        entry.encode(&mut bytes);
        let mut rest = &bytes[..];
        assert_eq!(Entry::decode(&mut rest).as_ref(), Some(&entry));
        assert_eq!(Entry::decode(&mut rest).as_ref(), Some(&entry));
        assert!(rest.is_empty());
        for short in 0..bytes.len() / 2 {
            assert_eq!(Entry::decode(&mut &bytes[..short]), None);
            assert_eq!(check(&bytes[..short], 9), if short == 0 { Some((0, 9)) } else { None });
        }
        assert_eq!(check(&bytes, 9), None, "7 after 7");
        bytes[..8].copy_from_slice(&8u64.to_ne_bytes());
        assert_eq!((check(&bytes, 8), check(&bytes, 9)), (None, Some((2, 7))));
        let address_at = HEAD;
        bytes[address_at..address_at + 4].copy_from_slice(&(MAX_CLIENT_TEXT as u32 + 1).to_ne_bytes());
        bytes.resize(1000, 0);
        assert_eq!(Entry::decode(&mut &bytes[..]), None, "an address that is too long");
    }

    #[test]
    fn a_long_argument_is_cut_as_redis_does() {
        let mut draft = Draft::default();
        draft.begin(0, 0, &[b'a'; 1000], &[b'n'; 1000]);
        for _ in 0..100 {
            draft.argument(&vec![b'x'; 1_000_000]);
        }
        assert!(draft.bytes().len() <= MAX_RECORD);
        let entry = Entry::decode(&mut draft.bytes()).expect("an entry");
        assert_eq!(entry.args.len(), MAX_ARGUMENTS);
        let mut expected = vec![b'x'; 128];
        expected.extend_from_slice(b"... (999872 more bytes)");
        assert_eq!(entry.args[0], expected);
    }
}
