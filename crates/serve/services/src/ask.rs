//! A question to a service, and the wait for its answer.
//!
//! The service may have died, be slow, or answer nonsense; a member of the region can write over a
//! native service's answer. So the wait is bounded, and what comes back is two words that the asker
//! has to judge.

use crate::shared::Shared;
use orbit_sandbox_lib::question::{Answer, NUMBERS, PATH, Questions, WORDS};
use orbit_sandbox_lib::sys;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Longest sleep before it is checked whether the service is still loaded, nanoseconds.
const NAP_NS: u64 = 100_000_000;

/// A system call that a service is to decide about: `struct orbit_question` of `orbit_service.h`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Its number.
    pub call: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// The process that makes it.
    pub pid: u64,
    /// The thread.
    pub tid: u64,
    /// Address of the instruction.
    pub site: u64,
    /// The first path among the arguments; cut to 127 bytes.
    pub path: String,
}

impl Question {
    /// The words of it.
    pub fn words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[0] = self.call;
        words[1..7].copy_from_slice(&self.arguments);
        words[7..NUMBERS].copy_from_slice(&[self.pid, self.tid, self.site]);
        let mut path = [0u8; PATH];
        let length = self.path.len().min(PATH - 1);
        path[..length].copy_from_slice(&self.path.as_bytes()[..length]);
        for (to, bytes) in words[NUMBERS..].iter_mut().zip(path.chunks_exact(8)) {
            *to = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        words
    }
}

/// Where a service's questions are.
#[derive(Debug)]
enum Places {
    /// In the control words of a slot.
    Region(Arc<Shared>, usize),
    /// In the host's own memory.
    Own(Arc<Questions>),
}

/// A question that was put to a service. Dropped, it is taken out.
#[derive(Debug)]
pub struct Pending {
    places: Places,
    number: u64,
    /// Gone once the service is unloaded.
    service: Weak<()>,
}

impl Pending {
    /// Puts a question to a service in the region. `None`: too many wait already.
    pub(crate) fn of_slot(shared: Arc<Shared>, slot: usize, service: Weak<()>, question: &Question) -> Option<Pending> {
        let number = shared.control(slot).questions.put(&question.words())?;
        Some(Pending { places: Places::Region(shared, slot), number, service })
    }

    /// Puts a question to a service that runs in the host. `None`: too many wait already.
    pub fn new(questions: &Arc<Questions>, service: Weak<()>, question: &Question) -> Option<Pending> {
        let number = questions.put(&question.words())?;
        Some(Pending { places: Places::Own(questions.clone()), number, service })
    }

    /// The value of the event that starts the service.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn questions(&self) -> &Questions {
        match &self.places {
            Places::Region(shared, slot) => &shared.control(*slot).questions,
            Places::Own(questions) => questions,
        }
    }

    /// Waits for the answer. `None`: none came within `limit`, or the service was unloaded.
    pub fn wait(&self, limit: Duration) -> Option<Answer> {
        let end = Instant::now() + limit;
        let questions = self.questions();
        let bell = questions.bell(self.number);
        loop {
            let seen = bell.load(Acquire);
            if let Some(answer) = questions.answered(self.number) {
                return Some(answer);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.service.strong_count() == 0 {
                return None;
            }
            sys::sleep_on(bell, seen, (left.as_nanos() as u64).min(NAP_NS));
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.questions().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_has_the_form_of_the_header() {
        let path = "/etc/hosts".to_owned();
        let question = Question { call: 2, arguments: [1, 2, 3, 4, 5, 6], pid: 7, tid: 8, site: 9, path };
        let words = question.words();
        assert_eq!(words[..NUMBERS], [2, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let bytes: Vec<u8> = words[NUMBERS..].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(bytes.starts_with(b"/etc/hosts\0") && bytes.len() == PATH);
        let long = Question { path: "x".repeat(500), ..question };
        assert_eq!(long.words()[WORDS - 1].to_le_bytes(), *b"xxxxxxx\0");
    }

    #[test]
    fn a_wait_ends_with_the_answer_the_time_or_the_service() {
        let (questions, service) = (Arc::new(Questions::default()), Arc::new(()));
        let path = String::new();
        let question = Question { call: 2, arguments: [0; 6], pid: 7, tid: 8, site: 9, path };
        let put = || Pending::new(&questions, Arc::downgrade(&service), &question).expect("a place");
        let pending = put();
        assert_eq!(pending.wait(Duration::from_millis(5)), None);
        let answer = Answer { verdict: 1, result: -1 };
        let (theirs, number) = (questions.clone(), pending.number());
        let answers = std::thread::spawn(move || theirs.answer(number, answer).map(sys::wake).is_some());
        assert_eq!(pending.wait(Duration::from_secs(30)), Some(answer));
        assert!(answers.join().expect("answered"));
        drop(pending);
        let unloaded = put();
        drop(service);
        assert_eq!(unloaded.wait(Duration::from_secs(3600)), None);
    }
}
