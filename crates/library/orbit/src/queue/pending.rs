//! The calls that wait, in order. The first one, of most orbits the only one, lies in place: a call
//! now and then finds cold caches, and memory of its own for it would be one page more to walk to.

use std::collections::VecDeque;

use super::Waiting;

/// Invariant: `rest` is empty while `first` is `None`.
#[derive(Default)]
pub(super) struct Pending {
    first: Option<Waiting>,
    rest: VecDeque<Waiting>,
}

impl Pending {
    #[inline(always)]
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub fn get(&self, at: usize) -> Option<&Waiting> {
        match at.checked_sub(1) {
            None => self.first.as_ref(),
            Some(at) => self.rest.get(at),
        }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Waiting> {
        self.first.iter().chain(&self.rest)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Waiting> {
        self.first.iter_mut().chain(&mut self.rest)
    }

    /// Adds a call at the end.
    #[inline(always)]
    pub fn push(&mut self, waiting: Waiting) {
        if self.first.is_none() {
            self.first = Some(waiting);
        } else {
            self.push_behind(waiting);
        }
    }

    #[inline(never)]
    fn push_behind(&mut self, waiting: Waiting) {
        self.rest.push_back(waiting);
    }

    /// Takes the call whose turn it is.
    pub fn pop(&mut self) -> Option<Waiting> {
        let first = self.first.take();
        self.first = self.rest.pop_front();
        first
    }

    /// Takes the calls from a place on.
    pub fn split_off(&mut self, at: usize) -> VecDeque<Waiting> {
        if let Some(at) = at.checked_sub(1) {
            return self.rest.split_off(at);
        }
        let mut all = std::mem::take(&mut self.rest);
        if let Some(first) = self.first.take() {
            all.push_front(first);
        }
        all
    }

    /// Adds calls at the end.
    pub fn append(&mut self, calls: VecDeque<Waiting>) {
        calls.into_iter().for_each(|call| self.push(call));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Call;
    use orbit_testing::Random;
    use std::sync::Arc;

    fn waiting(number: u32) -> Waiting {
        Waiting {
            call: Arc::new(Call::new(number, 0, 0, None)),
            log_end: 0,
            args_len: 0,
            copier: None,
            held: Vec::new(),
            pins: Vec::new(),
            cancelled: false,
        }
    }

    #[test]
    fn calls_stay_in_order_through_any_history() {
        let (mut pending, mut model) = (Pending::default(), VecDeque::new());
        let mut drawn = Random::new(0x2545_f491_4f6c_dd1d);
        let mut random = |below: usize| drawn.index(below);
        for step in 0..4000 {
            match random(8) {
                0..=3 => {
                    pending.push(waiting(step));
                    model.push_back(step);
                }
                4 | 5 => assert_eq!(pending.pop().map(|w| w.call.number), model.pop_front(), "step {step}"),
                6 => {
                    let at = random(model.len() + 1);
                    let (taken, known) = (pending.split_off(at), model.split_off(at));
                    assert!(taken.iter().map(|w| w.call.number).eq(known.iter().copied()), "step {step}");
                    if random(2) == 0 {
                        pending.append(taken);
                        model.extend(known);
                    }
                }
                _ => {
                    let at = random(model.len() + 2);
                    assert_eq!(pending.get(at).map(|w| w.call.number), model.get(at).copied(), "step {step}");
                    assert!(pending.iter().rev().map(|w| w.call.number).eq(model.iter().rev().copied()), "step {step}");
                    assert!(pending.iter_mut().map(|w| w.call.number).eq(model.iter().copied()), "step {step}");
                }
            }
            assert_eq!((pending.len(), pending.is_empty()), (model.len(), model.is_empty()), "step {step}");
        }
    }
}
