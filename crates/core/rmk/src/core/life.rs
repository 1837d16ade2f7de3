//! One life of a module: its client, its requests, and the replies that wait for it.
//!
//! All of it is memory of the core that the module fills, so all of it is bounded. A reply that
//! cannot be handed over becomes an error at once, and so does a command once [`REPLY_BYTES`] of
//! replies wait; a module that asks for more than a call's [`Room`], or has more than
//! [`MAX_REQUESTS_A_CALL`] replies to come, has failed.

use super::{
    Client,
    installed::{Report, Shared},
    module::{Message, Request},
};
use crate::{
    command::{Command, Reply},
    error::{Error, Result},
    filter::Counts,
    wire::{decode, encode, list_length},
};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// Bytes of one call: an orbit's limit, less the envelope.
pub(super) const CALL_BYTES: usize = orbit::MAX_ARGS - 64;
/// Bytes of replies that may wait for a module.
const REPLY_BYTES: usize = 4 << 20;
/// Things that a module may ask for in one call, and their bytes. As many replies may wait for it,
/// those that are errors too.
const MAX_REQUESTS_A_CALL: u64 = 16_384;
const MAX_REQUEST_BYTES_A_CALL: usize = orbit::MAX_BYTES;

/// What belongs to one life of a module.
pub(super) struct Life {
    pub client: Arc<Client>,
    /// Subscription of the core -> the module's number for it, and back.
    pub ids: HashMap<u64, u64>,
    handles: HashMap<u64, u64>,
    /// Calls to make with the replies to its commands, and their bytes together.
    replies: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The state of the guarded programs that it received last; see [`Client::newly_guarded`].
    pub guards: u64,
}

/// What a module may still ask for in a call.
pub(super) struct Room {
    requests: u64,
    bytes: usize,
}

impl Default for Room {
    fn default() -> Room {
        Room { requests: MAX_REQUESTS_A_CALL, bytes: MAX_REQUEST_BYTES_A_CALL }
    }
}

/// What was pushed, taken off the room of the call; the error says how the module failed.
pub(super) fn requests_of(bytes: &[u8], room: &mut Room) -> std::result::Result<Vec<Request>, String> {
    // The list begins with its length, and is not read before it is known to be short enough.
    let count = list_length(bytes).unwrap_or(0);
    let left = room.requests.checked_sub(count).zip(room.bytes.checked_sub(bytes.len()));
    let (requests, left) = left.ok_or_else(|| {
        format!(
            "it asked for more than {MAX_REQUESTS_A_CALL} things, or {MAX_REQUEST_BYTES_A_CALL} bytes of them, \
            in one call: ask for the rest in the next"
        )
    })?;
    *room = Room { requests, bytes: left };
    decode(bytes).ok_or_else(|| "it pushed something that is no request".into())
}

/// Arguments of the call that carries a message: its length as `u32`, and the message.
pub(super) fn encoded(message: &Message) -> Vec<u8> {
    let message = encode(message);
    let mut args = (message.len() as u32).to_ne_bytes().to_vec();
    args.extend(message);
    args
}

fn too_long(bytes: u64) -> String {
    format!("the reply has {bytes} bytes, and a module takes {CALL_BYTES} at a time: ask for less")
}

impl Life {
    /// One that has not begun.
    pub fn new(client: Arc<Client>) -> Life {
        let (ids, handles) = (HashMap::new(), HashMap::new());
        Life { client, ids, handles, replies: VecDeque::new(), bytes: 0, guards: 0 }
    }

    /// One of the counts of its subscriptions, added up.
    pub fn sum(&self, of: fn(&Counts) -> u64) -> u64 {
        self.client.subscriptions().iter().map(|(.., counts)| of(counts)).sum()
    }

    /// Replies that wait to be handed over.
    pub fn waiting(&self) -> usize {
        self.replies.len()
    }

    /// How the module failed, if more replies wait than may: one that asks for several in each
    /// reply never comes to an end.
    pub fn within(&self) -> std::result::Result<(), String> {
        match self.waiting() as u64 {
            ..=MAX_REQUESTS_A_CALL => Ok(()),
            _ => Err(format!(
                "it issued more commands than it took replies, and {MAX_REQUESTS_A_CALL} wait for it: issue the rest \
                 once those came"
            )),
        }
    }

    /// The call to make for the reply that waits longest.
    pub fn next_reply(&mut self) -> Option<Vec<u8>> {
        let reply = self.replies.pop_front()?;
        self.bytes -= reply.len();
        Some(reply)
    }

    /// Has a pin do something, if the reply can be handed over.
    fn command(&self, pin: &str, command: &Command) -> std::result::Result<Reply, String> {
        if self.bytes + CALL_BYTES > REPLY_BYTES {
            return Err(format!(
                "replies of {} bytes wait for it already, {REPLY_BYTES} at most: ask once they came",
                self.bytes
            ));
        }
        if let Command::MemoryRead { length, .. } | Command::FileRead { length, .. } = command
            && *length > CALL_BYTES as u64
        {
            return Err(too_long(*length));
        }
        self.client.issue_cmd(pin, command).map_err(|error| error.to_string())
    }

    fn reply(&mut self, ticket: u64, reply: std::result::Result<Reply, String>) {
        let mut args = encoded(&Message::Replied { ticket, reply });
        if args.len() > CALL_BYTES {
            args = encoded(&Message::Replied { ticket, reply: Err(too_long(args.len() as u64)) });
        }
        self.bytes += args.len();
        self.replies.push_back(args);
    }

    /// Carries out one request of the module; the error is for a request without a ticket.
    pub fn carry_out(&mut self, request: Request, shared: &Shared) -> Result<()> {
        match request {
            Request::Use { pin } => self.client.use_pin(&pin),
            Request::Release { pin } => {
                self.client.release_pin(&pin)?;
                self.ids.retain(|id, _| self.client.has(*id));
                self.handles.retain(|_, id| self.client.has(*id));
                Ok(())
            }
            Request::Subscribe { handle, pin, kind, filter } => {
                let id = self.client.subscr_event(&pin, kind, filter)?;
                self.ids.insert(id, handle);
                self.handles.insert(handle, id);
                Ok(())
            }
            Request::Unsubscribe { handle } => {
                let id = self.handles.remove(&handle).unwrap_or(0);
                self.ids.remove(&id);
                self.client.unsubscr_event(id)
            }
            Request::Command { ticket, pin, command } => {
                let reply = self.command(&pin, &command);
                self.reply(ticket, reply);
                Ok(())
            }
            Request::Report { text } => {
                shared.report(Report::Said(text));
                Ok(())
            }
            Request::Fail { why } => Err(Error::Module { module: self.client.name().into(), why }),
        }
    }
}
