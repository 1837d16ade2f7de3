//! What the orbit brings for `ORBIT.SLOWLOG GET`: the log's newest entries, in as many updates, and
//! calls, as they need.
//!
//! The orbit may bring anything. Each update must be whole entries with falling ids, and all of
//! them together no more than were asked for or the log may hold; each call must return the count
//! that it brought. Until that is known they stay as they came, for a reply that has been begun
//! cannot be taken back.

use orbit::{Future, Outcome, Update};
use orbit_redis_api::{Context, Value};

use crate::keeper::Keeper;
use crate::query::{Next, Question};
use crate::record::{self, Entry};
use crate::task;

/// Bytes of a reason that are passed on.
const REASON: usize = 400;

/// A `GET`, and what has come for it.
pub struct Get {
    /// Entries asked for.
    wanted: u64,
    /// Entries that may come: no more than the log may hold.
    most: u64,
    /// The id of the oldest entry that has come; of the next all are below it.
    before: u64,
    /// Updates of entries.
    updates: Vec<Update>,
    /// Entries in them.
    entries: u64,
    /// Those that came in earlier calls.
    earlier: u64,
    /// The first update that is no entries; nothing is taken after it.
    other: Option<Update>,
}

impl Get {
    /// For so many of the newest entries.
    pub fn new(wanted: u64) -> Get {
        Get { wanted, most: 0, before: u64::MAX, updates: Vec::new(), entries: 0, earlier: 0, other: None }
    }

    /// What the end of a call means, if it is not an error.
    fn next(&mut self, returned: i64) -> Result<Next, String> {
        let came = self.entries - self.earlier;
        match &self.other {
            None if u64::try_from(returned) == Ok(came) => {
                self.earlier = self.entries;
                let last = came < task::FEWEST_IF_MORE || self.entries == self.most;
                Ok(if last { Next::Answered } else { Next::More })
            }
            Some(why) if returned < 0 => {
                let why = data(why);
                Err(format!(
                    "ORBIT the slow log's orbit cannot answer: {}",
                    why[..why.len().min(REASON)].escape_ascii()
                ))
            }
            other => Err(format!(
                "ORBIT the slow log's orbit answered what makes no sense: it says {returned} entries, and {came} \
                 came{}",
                if other.is_some() { ", and something else" } else { "" }
            )),
        }
    }
}

impl Question for Get {
    fn ask(&mut self, keeper: &mut Keeper) -> orbit::Result<Future> {
        self.most = self.wanted.min(keeper.options.max_len);
        keeper.ask(task::get, [self.most.saturating_sub(self.entries), self.before], None)
    }

    fn take(&mut self, update: Update) {
        if self.other.is_some() {
            return;
        }
        match record::check(data(&update), self.before) {
            Some((count, last)) if self.entries + count <= self.most => {
                (self.entries, self.before) = (self.entries + count, last);
                self.updates.push(update);
            }
            _ => self.other = Some(update),
        }
    }

    fn answer(&mut self, outcome: &Outcome, client: &Context) -> Next {
        let Some(returned) = outcome.returned() else {
            *self = Get::new(self.wanted);
            return Next::Again;
        };
        match self.next(returned) {
            Ok(Next::Answered) => reply(client, self.entries, std::mem::take(&mut self.updates)),
            Ok(next) => return next,
            Err(error) => {
                client.reply(Err(error.into()));
            }
        }
        Next::Answered
    }
}

fn data(update: &Update) -> &[u8] {
    update.first_data().unwrap_or_default()
}

/// Writes entries that have been counted. Each update is let go of when it is written.
fn reply(client: &Context, count: u64, updates: Vec<Update>) {
    client.begin_array(count);
    for update in updates {
        let mut bytes = data(&update);
        while let Some(entry) = Entry::decode(&mut bytes) {
            client.reply(Ok(entry_reply(entry)));
        }
    }
}

/// An entry as `SLOWLOG GET` shows it.
pub fn entry_reply(entry: Entry) -> Value {
    Value::Array(vec![
        Value::Integer(entry.id as i64),
        Value::Integer(entry.time),
        Value::Integer(entry.micros),
        Value::Array(entry.args.into_iter().map(Value::Bytes).collect()),
        Value::Bytes(entry.address),
        Value::Bytes(entry.name),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(bytes: &[u8]) -> Update {
        let mut update = Update::new();
        update.data(bytes);
        update
    }

    /// Entries with the ids of the range, the newest first.
    fn entries(ids: std::ops::Range<u64>) -> Update {
        let mut bytes = Vec::new();
        for id in ids.rev() {
            Entry { id, args: vec![b"PING".to_vec()], ..Entry::default() }.encode(&mut bytes);
        }
        update(&bytes)
    }

    fn get(most: u64) -> Get {
        Get { most, ..Get::new(most) }
    }

    #[test]
    fn no_more_is_kept_than_was_asked_for() {
        let mut get = get(5);
        for ids in [97..99, 94..97, 93..94] {
            get.take(entries(ids));
        }
        assert_eq!((get.entries, get.before, get.updates.len(), get.other.is_some()), (5, 94, 2, true));
        get.take(entries(0..0));
        assert_eq!(get.updates.len(), 2, "nothing is taken after what is wrong");
        assert!(get.next(5).is_err());
    }

    #[test]
    fn what_is_no_entries_is_not_taken_for_some() {
        for other in [update(b"why"), update(&[0; 28]), update(&[0xff; 100]), entries(7..8), entries(9..12)] {
            let mut get = get(50);
            get.take(entries(7..9));
            get.take(other.clone());
            assert_eq!((get.entries, &get.other), (2, &Some(other)));
            assert!(get.next(2).expect_err("no answer").contains("makes no sense"));
        }
    }

    #[test]
    fn a_failure_comes_with_its_reason() {
        let mut get = get(50);
        get.take(entries(7..9));
        get.take(update(b"too\r\nlarge"));
        assert!(get.next(-1).expect_err("it failed").ends_with("cannot answer: too\\r\\nlarge"));
    }

    #[test]
    fn calls_follow_each_other_until_one_is_not_full() {
        let full = task::FEWEST_IF_MORE;
        let mut get = get(10 * full);
        get.take(entries(8 * full..9 * full));
        assert_eq!(get.next(full as i64), Ok(Next::More));
        get.take(entries(7 * full..8 * full));
        get.take(entries(0..full));
        assert_eq!(get.next(2 * full as i64), Ok(Next::More));
        assert_eq!((get.next(0), get.entries), (Ok(Next::Answered), 3 * full));
        assert!(get.next(1).is_err(), "none came");
    }
}
