//! Breadth-first search through all states, each of them kept as a fingerprint of 128 bits.

use std::{
    collections::{HashSet, VecDeque},
    hash::{BuildHasherDefault, Hash, Hasher},
};

use crate::{steps::Step, world::World};

/// Two multiplicative hashes side by side.
#[derive(Default)]
pub(crate) struct Fingerprint([u64; 2]);

impl Fingerprint {
    pub(crate) fn of(value: &impl Hash) -> u128 {
        let mut hasher = Fingerprint::default();
        value.hash(&mut hasher);
        u128::from(mix(hasher.0[0])) << 64 | u128::from(mix(hasher.0[1]))
    }
}

fn mix(mut x: u64) -> u64 {
    x ^= x >> 32;
    x = x.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ x >> 32
}

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        mix(self.0[0] ^ self.0[1])
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let [a, b] = self.0;
        self.0[0] = (a.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0[1] = (b.rotate_left(23) ^ word).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_u128(&mut self, word: u128) {
        self.write_u64(word as u64);
        self.write_u64((word >> 64) as u64);
    }
}

/// What a search has found.
pub(crate) struct Found {
    pub(crate) states: usize,
    /// What is wrong, and how it came about.
    pub(crate) violation: Option<(&'static str, Vec<String>)>,
    pub(crate) is_exhausted: bool,
}

/// Searches from `start` on, until a state is wrong, all are seen, or `states_max` are.
pub(crate) fn search(start: &World, states_max: usize) -> Found {
    let mut seen: HashSet<u128, BuildHasherDefault<Fingerprint>> = HashSet::default();
    // How each state was reached: from which, and by its which step.
    let mut origins: Vec<(u32, u16)> = vec![(0, 0)];
    let mut next: VecDeque<(u32, World)> = VecDeque::new();
    seen.insert(Fingerprint::of(start));
    next.push_back((0, start.clone()));
    while let Some((name, world)) = next.pop_front() {
        for (nth, step) in (0..).zip(world.steps()) {
            let Some(after) = world.after(step) else {
                continue;
            };
            if !seen.insert(Fingerprint::of(&after)) {
                continue;
            }
            let reached = origins.len() as u32;
            origins.push((name, nth));
            if let Some(what) = after.violation() {
                return Found {
                    states: origins.len(),
                    violation: Some((what, story(start, &origins, reached))),
                    is_exhausted: false,
                };
            }
            next.push_back((reached, after));
        }
        if origins.len() >= states_max {
            break;
        }
    }
    Found {
        states: origins.len(),
        violation: None,
        is_exhausted: next.is_empty(),
    }
}

/// The steps from `start` to the state `last`.
fn story(start: &World, origins: &[(u32, u16)], last: u32) -> Vec<String> {
    let mut path = Vec::new();
    let mut at = last;
    while at != 0 {
        let (from, nth) = origins[at as usize];
        path.push(nth);
        at = from;
    }
    let mut world = start.clone();
    let mut story = Vec::new();
    for nth in path.into_iter().rev() {
        let step = world.steps()[usize::from(nth)];
        story.push(match step {
            Step::Executed { message, .. }
            | Step::AnsweredLate(message)
            | Step::RegisteredTooLate(message) => {
                format!("{step:?}: {:?}", world.messages[message])
            }
            _ => format!("{step:?}"),
        });
        world = world.after(step).expect("it was possible before");
    }
    story
}
