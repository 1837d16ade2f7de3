//! Questions to a service: somebody puts one in, an event with its number starts the handler, and
//! the handler answers.
//!
//! For native services the places lie in the control part, which every member can write: a wrong
//! word there makes an answer wrong or lost, so whoever asks checks what it reads and waits for a
//! bounded time. Those of a wasm service are the host's own. No loop here depends on a word, and no
//! index is used unmasked.
//!
//! A place's state is a number that no earlier question there had, then two bits: `FREE`,
//! `FILLING`, `ASKED` or `ANSWERED`. The number of a question is its state when it is asked,
//! and its place above 56 bits.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Questions of one service that wait at most.
pub const PLACES: usize = 4;
/// Words of a question: `struct orbit_question` of `orbit_service.h`.
pub const WORDS: usize = 26;
/// Words of it before the path.
pub const NUMBERS: usize = 10;
/// Bytes of the path.
pub const PATH: usize = (WORDS - NUMBERS) * 8;

const FREE: u64 = 0;
const FILLING: u64 = 1;
const ASKED: u64 = 2;
const ANSWERED: u64 = 3;
/// Of a place's state, without its place.
const STATE: u64 = (1 << 56) - 1;

/// What a service says to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// By the asker's meaning; of a system call 0: it passes, 1: `result` is its result.
    pub verdict: u32,
    /// See `verdict`.
    pub result: i64,
}

/// Room for one question.
#[repr(C)]
#[derive(Debug)]
struct Place {
    state: AtomicU64,
    words: [AtomicU64; WORDS],
    result: AtomicU64,
    verdict: AtomicU32,
    /// Raised with each answer: the caller sleeps on it.
    answers: AtomicU32,
}

/// The places of a service. All zeros are free ones.
#[repr(C)]
#[derive(Debug)]
pub struct Questions {
    places: [Place; PLACES],
}

impl Default for Questions {
    fn default() -> Questions {
        let place = || Place {
            state: AtomicU64::new(FREE),
            words: [const { AtomicU64::new(0) }; WORDS],
            result: AtomicU64::new(0),
            verdict: AtomicU32::new(0),
            answers: AtomicU32::new(0),
        };
        Questions { places: [place(), place(), place(), place()] }
    }
}

impl Questions {
    /// Puts a question in, and returns its number. `None`: all places are taken.
    pub fn put(&self, words: &[u64; WORDS]) -> Option<u64> {
        for (index, place) in self.places.iter().enumerate() {
            let state = place.state.load(Acquire);
            let fresh = (state & STATE & !3).wrapping_add(4) & STATE;
            if state & 3 != FREE || place.state.compare_exchange(state, fresh | FILLING, AcqRel, Relaxed).is_err() {
                continue;
            }
            for (to, word) in place.words.iter().zip(words) {
                to.store(*word, Relaxed);
            }
            place.state.store(fresh | ASKED, Release);
            return Some((index as u64) << 56 | fresh | ASKED);
        }
        None
    }

    fn place(&self, number: u64) -> (&Place, u64) {
        (&self.places[(number >> 56) as usize % PLACES], number & STATE)
    }

    /// The words of a question that waits for its answer; `None`: there is none of this number.
    pub fn read(&self, number: u64) -> Option<[u64; WORDS]> {
        let (place, state) = self.place(number);
        if state & 3 != ASKED || place.state.load(Acquire) != state {
            return None;
        }
        let mut words = [0; WORDS];
        for (to, word) in words.iter_mut().zip(&place.words) {
            *to = word.load(Relaxed);
        }
        // Not of the next question in the same place.
        (place.state.load(Acquire) == state).then_some(words)
    }

    /// Answers a question. Returns the word that its asker sleeps on, to be woken; `None`: nobody
    /// waits for this answer.
    pub fn answer(&self, number: u64, answer: Answer) -> Option<&AtomicU32> {
        let (place, state) = self.place(number);
        if state & 3 != ASKED || place.state.load(Acquire) != state {
            return None;
        }
        place.verdict.store(answer.verdict, Relaxed);
        place.result.store(answer.result as u64, Relaxed);
        let answered = state & !3 | ANSWERED;
        if place.state.compare_exchange(state, answered, AcqRel, Relaxed).is_err() {
            return None;
        }
        place.answers.fetch_add(1, Release);
        Some(&place.answers)
    }

    /// The answer, if it is there.
    pub fn answered(&self, number: u64) -> Option<Answer> {
        let (place, state) = self.place(number);
        if place.state.load(Acquire) != state & !3 | ANSWERED {
            return None;
        }
        Some(Answer { verdict: place.verdict.load(Relaxed), result: place.result.load(Relaxed) as i64 })
    }

    /// The word that is raised with the answer to a question.
    pub fn bell(&self, number: u64) -> &AtomicU32 {
        &self.place(number).0.answers
    }

    /// Takes a question out, answered or not. Only the thread that put it in does.
    pub fn remove(&self, number: u64) {
        let (place, state) = self.place(number);
        place.state.store(state & !3 | FREE, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, PLACES, Questions, WORDS};
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn an_answer_is_of_its_question_only() {
        let questions = Questions::default();
        let first = questions.put(&[7; WORDS]).expect("a place");
        assert_eq!(questions.read(first), Some([7; WORDS]));
        assert_eq!(questions.answered(first), None);
        let answer = Answer { verdict: 1, result: -13 };
        assert!(questions.answer(first, answer).is_some());
        assert!(questions.answer(first, answer).is_none(), "answered twice");
        assert_eq!(questions.answered(first), Some(answer));
        questions.remove(first);
        // The next one in the same place has another number.
        let second = questions.put(&[8; WORDS]).expect("a place");
        assert_ne!(first, second);
        assert!(questions.answer(first, answer).is_none() && questions.read(first).is_none());
        assert_eq!(questions.answered(second), None);
        questions.remove(second);
        assert!(questions.answer(second, answer).is_none(), "taken out");
    }

    #[test]
    fn places_are_bounded_and_wild_numbers_and_words_do_no_harm() {
        let questions = Questions::default();
        let all: [u64; PLACES] = core::array::from_fn(|_| questions.put(&[0; WORDS]).expect("a place"));
        assert_eq!(questions.put(&[0; WORDS]), None);
        for number in [0, 1, 2, 3, u64::MAX, 1 << 63 | 2] {
            assert!(questions.read(number).is_none());
            assert!(questions.answer(number, Answer { verdict: 0, result: 0 }).is_none());
        }
        for state in [0, u64::MAX, 3, 1 << 60] {
            questions.places.iter().for_each(|place| place.state.store(state, Relaxed));
            all.iter().for_each(|number| questions.remove(*number));
        }
        assert!(questions.put(&[0; WORDS]).is_some());
    }
}
