//! What clients were told, and whether one order of all reads and writes explains it: linearizability, exactly. The set of
//! all orders that are still possible is carried along, each as the value that it has led to and the operations that it
//! contains already.

const NOT_ASKED: u8 = 255;
const ASKED: u8 = 254;

/// One possible past.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Past {
    value: u8,
    /// Unanswered writes that it contains, as bits.
    contains: u8,
    /// For each node's read: not asked, not contained yet, or what it returns.
    reads: [u8; 2],
}

/// What was asked and answered so far.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct History {
    /// Writes that were asked for and not answered, as bits. The value that a write writes is its number.
    unanswered: u8,
    pasts: Vec<Past>,
}

impl History {
    pub(crate) fn new() -> History {
        let start = Past {
            value: 0,
            contains: 0,
            reads: [NOT_ASKED; 2],
        };
        History {
            unanswered: 0,
            pasts: vec![start],
        }
    }

    pub(crate) fn is_possible(&self) -> bool {
        !self.pasts.is_empty()
    }

    pub(crate) fn write(&mut self, value: u8) {
        self.unanswered |= 1 << value;
    }

    pub(crate) fn acknowledge(&mut self, value: u8) {
        let bit = 1 << value;
        self.extend();
        self.pasts.retain_mut(|past| {
            let is_in = past.contains & bit != 0;
            past.contains &= !bit;
            is_in
        });
        self.unanswered &= !bit;
        self.normalise();
    }

    pub(crate) fn read(&mut self, node: usize) {
        for past in &mut self.pasts {
            past.reads[node] = ASKED;
        }
        self.normalise();
    }

    /// The read of `node` returns `value`, or nothing.
    pub(crate) fn answer(&mut self, node: usize, value: Option<u8>) {
        if value.is_some() {
            self.extend();
        }
        self.pasts.retain_mut(|past| {
            let returned = std::mem::replace(&mut past.reads[node], NOT_ASKED);
            value.is_none_or(|value| value == returned)
        });
        self.normalise();
    }

    /// Adds every past that follows by containing more.
    fn extend(&mut self) {
        let mut at = 0;
        while let Some(&past) = self.pasts.get(at) {
            at += 1;
            let mut add = |next: Past| {
                if !self.pasts.contains(&next) {
                    self.pasts.push(next);
                }
            };
            for value in (0..8).filter(|value| self.unanswered & !past.contains & (1 << value) != 0)
            {
                add(Past {
                    value,
                    contains: past.contains | 1 << value,
                    ..past
                });
            }
            for node in (0..2).filter(|node| past.reads[*node] == ASKED) {
                let mut next = past;
                next.reads[node] = past.value;
                add(next);
            }
        }
    }

    fn normalise(&mut self) {
        self.pasts.sort_unstable();
        self.pasts.dedup();
    }
}
