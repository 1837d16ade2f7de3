//! A service decides about system calls: `orbit hijack --inject 'unlink* -> ask service NAME'`.
//!
//! Each question is a command to the host, by its socket. No host, no such service, no answer in
//! time, and an answer that is none, are all no answer: what becomes of the call then is the
//! session's setting.

use crate::protocol::{self, Ask, Reply, Request};
use orbit_hijack::{Answer, Decider, Question};
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Results beyond these make no sense: errors are from -4095.
const LEAST: i64 = -4095;
/// Different reasons that are reported; later ones are not.
const REASONS: usize = 16;

/// Asks services of the host at this socket, each question the one that its rule names. `report`
/// hears why there was no answer, each reason once.
pub fn decider(socket: &Path, mut report: impl FnMut(&str) + Send + 'static) -> Decider {
    let socket = socket.to_owned();
    let mut known = HashSet::new();
    Decider::bounded(move |question: &Question, limit| match ask(&socket, question, limit) {
        Ok(answer) => Some(answer),
        Err(reason) => {
            if known.len() < REASONS && known.insert(reason.clone()) {
                report(&reason);
            }
            None
        }
    })
}

fn ask(socket: &Path, question: &Question, limit: Duration) -> Result<Answer, String> {
    let request = Request::Ask(Ask {
        service: question.name.clone(),
        limit_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX),
        call: question.number,
        arguments: question.arguments,
        pid: question.pid.into(),
        tid: question.tid.into(),
        site: question.site,
        path: question.path.clone(),
    });
    let name = &question.name;
    match protocol::ask_within(socket, &request, limit) {
        Ok(Reply::Answer { verdict, result }) => judge(verdict, result)
            .ok_or_else(|| format!("service {name}: verdict {verdict} with result {result} means nothing")),
        Ok(Reply::Failed(why)) => Err(why),
        Ok(_) => Err(format!("service {name}: the host's reply is no answer")),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Err(format!("service {name}: no answer within {limit:?}"))
        }
        Err(error) => Err(format!("service {name}: {error}")),
    }
}

/// What a service's two words mean; `None`: nothing.
fn judge(verdict: u32, result: i64) -> Option<Answer> {
    match verdict {
        0 => Some(Answer::Pass),
        1 if result >= LEAST => Some(Answer::Result(result)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, judge};

    #[test]
    fn words_that_mean_nothing_are_no_answer() {
        assert_eq!(judge(0, 17), Some(Answer::Pass));
        assert_eq!(judge(1, -13), Some(Answer::Result(-13)));
        assert_eq!(judge(1, i64::MAX), Some(Answer::Result(i64::MAX)));
        assert_eq!([judge(1, -4096), judge(1, i64::MIN), judge(2, 0), judge(u32::MAX, 0)], [None; 4]);
    }
}
