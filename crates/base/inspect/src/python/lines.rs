//! The line a code object is at: CPython's packed line tables.
//!
//! Promises: any bytes give an answer, in time proportional to their number.

use super::layout::Table;

/// The line at an offset in the code (bytes), or nothing if the table has none for it.
pub(super) fn line(table: Table, bytes: &[u8], first: u32, at: u64) -> Option<u32> {
    let line = match table {
        Table::Lnotab => lnotab(bytes, i64::from(first), at),
        Table::Ranges => ranges(bytes, i64::from(first), at)?,
        Table::Locations => locations(bytes, i64::from(first), at)?,
    };
    u32::try_from(line).ok().filter(|&l| l > 0)
}

fn lnotab(bytes: &[u8], mut line: i64, at: u64) -> i64 {
    let mut reached = 0u64;
    for pair in bytes.chunks_exact(2) {
        reached += u64::from(pair[0]);
        if reached > at {
            break;
        }
        line += i64::from(pair[1] as i8);
    }
    line
}

fn ranges(bytes: &[u8], mut line: i64, at: u64) -> Option<i64> {
    let mut end = 0u64;
    for pair in bytes.chunks_exact(2) {
        let delta = pair[1] as i8;
        end += u64::from(pair[0]);
        if delta != i8::MIN {
            line += i64::from(delta);
        }
        if end > at {
            return (delta != i8::MIN).then_some(line);
        }
    }
    None
}

fn locations(bytes: &[u8], mut line: i64, at: u64) -> Option<i64> {
    let mut i = 0;
    let mut end = 0u64;
    while let Some(&head) = bytes.get(i) {
        i += 1;
        if head & 128 == 0 {
            return None;
        }
        end += 2 * (u64::from(head & 7) + 1);
        let kind = head >> 3 & 15;
        let known = match kind {
            0..=9 => {
                i += 1;
                true
            }
            10..=12 => {
                i += 2;
                line += i64::from(kind) - 10;
                true
            }
            13 => {
                line += signed(varint(bytes, &mut i)?);
                true
            }
            14 => {
                line += signed(varint(bytes, &mut i)?);
                for _ in 0..3 {
                    varint(bytes, &mut i)?;
                }
                true
            }
            _ => false,
        };
        if end > at {
            return known.then_some(line);
        }
    }
    None
}

/// Six bits a byte, the seventh says that more follow.
fn varint(bytes: &[u8], i: &mut usize) -> Option<u64> {
    let mut v = 0u64;
    for shift in (0..36).step_by(6) {
        let b = *bytes.get(*i)?;
        *i += 1;
        v |= u64::from(b & 63) << shift;
        if b & 64 == 0 {
            return Some(v);
        }
    }
    None
}

fn signed(v: u64) -> i64 {
    let half = (v >> 1) as i64;
    if v & 1 == 0 { half } else { -half }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_give_an_answer() {
        let mut random = orbit_testing::Random::new(0x9e37_79b9_7f4a_7c15);
        for _ in 0..20_000 {
            let (bytes, x) = (random.bytes(64), random.draw());
            for t in [Table::Lnotab, Table::Ranges, Table::Locations] {
                let _ = line(t, &bytes, x as u32, x % 600);
            }
        }
    }
}
