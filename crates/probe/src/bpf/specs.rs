//! The numbers of specs: each is a probe's as long as anything can hit it.

use std::sync::{Arc, Mutex};

use super::{BpfError, mutex::lock};

/// All of them.
pub(super) struct Specs(Arc<Mutex<Numbers>>);

struct Numbers {
    /// Those that were given back.
    free: Vec<u32>,
    /// The lowest that was never taken.
    next: u32,
    limit: u32,
}

/// A number that is taken. It is given back when this is dropped: what can hit the probe keeps it.
pub(super) struct Spec {
    index: u32,
    all: Arc<Mutex<Numbers>>,
}

impl Specs {
    pub(super) fn new(limit: u32) -> Self {
        Self(Arc::new(Mutex::new(Numbers { free: Vec::new(), next: 0, limit })))
    }

    /// Takes a number.
    pub(super) fn take(&self) -> Result<Arc<Spec>, BpfError> {
        let mut numbers = lock(&self.0);
        let index = match numbers.free.pop() {
            Some(index) => index,
            None if numbers.next < numbers.limit => {
                numbers.next += 1;
                numbers.next - 1
            }
            None => return Err(BpfError::TooManyProbes(numbers.limit)),
        };
        Ok(Arc::new(Spec { index, all: Arc::clone(&self.0) }))
    }

    /// How many are taken.
    pub(super) fn taken(&self) -> usize {
        let numbers = lock(&self.0);
        numbers.next as usize - numbers.free.len()
    }
}

impl Spec {
    pub(super) const fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for Spec {
    fn drop(&mut self) {
        lock(&self.all).free.push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number is another probe's only once all that held it is gone, and there are no more than there may be.
    #[test]
    fn numbers_are_given_back() {
        let specs = Specs::new(2);
        let (first, second) = (specs.take().unwrap(), specs.take().unwrap());
        assert_eq!((first.index(), second.index(), specs.taken()), (0, 1, 2));
        assert!(specs.take().is_err());
        let at_return = Arc::clone(&first);
        drop(first);
        assert!(specs.take().is_err());
        drop(at_return);
        assert_eq!(specs.taken(), 1);
        let again = specs.take().unwrap();
        assert_eq!((again.index(), specs.taken()), (0, 2));
    }
}
