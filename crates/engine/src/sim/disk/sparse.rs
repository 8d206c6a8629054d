//! The bytes of a simulated file. Pages that were never written cost nothing and read as zeroes. Clones
//! share their pages until one of them changes.

use std::{collections::BTreeMap, rc::Rc};

use crate::extent::Extent;

const PAGE: u64 = 4096;

/// The content of a file and its length.
#[derive(Clone, Default)]
pub(in crate::sim) struct Sparse {
    pages: BTreeMap<u64, Rc<[u8]>>,
    len: u64,
}

impl Sparse {
    pub(in crate::sim) fn len(&self) -> u64 {
        self.len
    }

    /// Extends it to at least `len` bytes.
    pub(in crate::sim) fn extend(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    /// Cuts it to at most `len` bytes; what is added later reads as zeroes.
    pub(in crate::sim) fn truncate(&mut self, len: u64) {
        self.zero(len, self.len.saturating_sub(len).next_multiple_of(PAGE));
        self.len = self.len.min(len);
    }

    /// The run of allocated or unallocated pages around byte `at`.
    pub(in crate::sim) fn extent(&self, at: u64) -> Extent {
        let page = at / PAGE;
        let mut next = page;
        let is_allocated = self.pages.contains_key(&page);
        if is_allocated {
            while self.pages.contains_key(&next) {
                next += 1;
            }
        }
        let following = self.pages.range(page..).next().map(|(page, _)| *page);
        let end = match (is_allocated, following) {
            (true, _) => next * PAGE,
            (false, Some(data)) => data * PAGE,
            (false, None) => self.len,
        };
        Extent { is_allocated, end }
    }

    pub(in crate::sim) fn read(&self, at: u64, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let (page, from, n) = piece(at + done as u64, into.len() - done);
            let into = &mut into[done..done + n];
            match self.pages.get(&page) {
                Some(bytes) => into.copy_from_slice(&bytes[from..from + n]),
                None => into.fill(0),
            }
            done += n;
        }
    }

    pub(in crate::sim) fn write(&mut self, at: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (page, from, n) = piece(at + done as u64, bytes.len() - done);
            let bytes = &bytes[done..done + n];
            if n as u64 == PAGE {
                self.pages.insert(page, bytes.into());
            } else {
                let blank = || [0; PAGE as usize].into();
                let to = self.pages.entry(page).or_insert_with(blank);
                Rc::make_mut(to)[from..from + n].copy_from_slice(bytes);
            }
            done += n;
        }
        self.extend(at + bytes.len() as u64);
    }

    /// Makes a range read as zeroes; the length stays.
    pub(in crate::sim) fn zero(&mut self, at: u64, len: u64) {
        let end = at.saturating_add(len);
        // Remove whole pages, and clear the partial ones at both edges.
        let (first_whole, last_whole) = (at.div_ceil(PAGE), end / PAGE);
        if first_whole < last_whole {
            let gone: Vec<u64> = self
                .pages
                .range(first_whole..last_whole)
                .map(|(&page, _)| page)
                .collect();
            for page in gone {
                self.pages.remove(&page);
            }
        }
        for page in [at / PAGE, end / PAGE] {
            let from = at.max(page * PAGE);
            let to = end.min((page + 1) * PAGE);
            if from < to {
                if let Some(bytes) = self.pages.get_mut(&page) {
                    let range = (from - page * PAGE) as usize..(to - page * PAGE) as usize;
                    Rc::make_mut(bytes)[range].fill(0);
                }
            }
        }
    }
}

/// The page that holds byte `at`, the position within it, and how many of `left` bytes it holds.
fn piece(at: u64, left: usize) -> (u64, usize, usize) {
    let from = (at % PAGE) as usize;
    (at / PAGE, from, left.min(PAGE as usize - from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Random;

    #[test]
    fn a_copy_stays_as_it_was() {
        let mut sparse = Sparse::default();
        sparse.write(0, &[1; 3 * PAGE as usize]);
        let copy = sparse.clone();
        sparse.write(10, &[2; 10]);
        sparse.write(PAGE, &[2; PAGE as usize]);
        sparse.zero(2 * PAGE, 10);
        let mut seen = [0; 3 * PAGE as usize];
        copy.read(0, &mut seen);
        assert!(seen.iter().all(|&byte| byte == 1));
    }

    #[test]
    fn it_holds_what_a_plain_vector_would() {
        let mut random = Random::new(1);
        let mut model = vec![0u8; 40_000];
        let mut sparse = Sparse::default();
        sparse.extend(40_000);
        for _ in 0..500 {
            let at = random.index(40_000);
            let len = random.index(40_000 - at + 1).min(9_000);
            if random.chance(0.4) {
                sparse.zero(at as u64, len as u64);
                model[at..at + len].fill(0);
            } else {
                random.fill(&mut model[at..at + len]);
                sparse.write(at as u64, &model[at..at + len]);
            }
            let mut seen = vec![1; 40_000];
            sparse.read(0, &mut seen);
            assert!(seen == model);
        }
        assert_eq!(sparse.len(), 40_000);
    }
}
