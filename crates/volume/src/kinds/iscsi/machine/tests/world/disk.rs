//! What the disk itself is, how long it has become, and who owns it: what is true, and what may happen to it.

use super::*;

/// What is true of the fence, whatever the machine knows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FenceTruth {
    None,
    Watched,
    Made,
    /// The target has restarted since; it was fenced before that, or not.
    Stale {
        was_fenced: bool,
    },
    Lost,
}

impl World {
    /// The disk is known for the first time.
    pub(super) fn open_disk(&mut self) {
        (self.is_open, self.told, self.followed) = (true, THROUGH, THROUGH);
        self.tell(Event::Opened(GEOMETRY, THROUGH));
    }

    pub(super) fn settle(&mut self) {
        const ALL: [Subject; 2] = [Subject::Mode, Subject::Claim];
        let subject = ALL[self.dice.below(2) as usize];
        let events = self.driven.machine.events(subject);
        if self.dice.coin() {
            self.tell(Event::Doubted(subject));
        }
        self.tell(Event::Settled(subject, events));
        let is_settled = self.driven.machine.is_settled(subject, events);
        assert!(is_settled, "that was answered");
        let is_newer = self.driven.machine.events(subject) > events;
        assert_eq!(self.driven.machine.is_open(subject), is_newer);
    }

    /// The target says other mode parameters.
    pub(super) fn change_mode(&mut self) {
        let told = Mode {
            is_volatile: self.dice.one_in(100),
            is_protected: self.dice.coin(),
            takes_fua: self.dice.coin(),
        };
        if self.is_open {
            self.told = told;
        }
        self.tell(Event::Mode(told));
        assert!(
            self.has_cache || !self.told.is_volatile,
            "it is not flushed"
        );
    }

    /// The target says what geometry the disk has, or does not.
    pub(super) fn measure(&mut self) {
        self.tell(Event::Doubted(Subject::Capacity));
        let asked = self.driven.machine.events(Subject::Capacity);
        if self.dice.coin() {
            self.tell(Event::Doubted(Subject::Capacity));
        }
        let is_newer = self.driven.machine.events(Subject::Capacity) > asked;
        if self.is_open && self.dice.one_in(4) {
            self.tell(Event::Unmeasured);
            self.has_other_blocks = false;
            let is_open = self.driven.machine.is_open(Subject::Capacity);
            return assert!(is_open, "it is asked again");
        }
        let now = Geometry {
            block_size_bytes: [512, 512, 4096][self.dice.below(3) as usize],
            len_bytes: GEOMETRY.len_bytes + 4096 * self.dice.below(1 << 20),
        };
        self.has_other_blocks = self.is_open && now.block_size_bytes != GEOMETRY.block_size_bytes;
        let was_long = self.len_bytes;
        let told = self.tell(Event::Measured(now, asked));
        if !self.is_open {
            return assert!(told.is_empty(), "that is for whoever opens it");
        }
        match self.has_other_blocks {
            true => assert_eq!(self.len_bytes, was_long, "that is no length"),
            false => {
                assert_eq!(self.len_bytes, was_long.max(now.len_bytes));
                let is_open = self.driven.machine.is_open(Subject::Capacity);
                assert_eq!(is_open, is_newer, "that was answered");
            }
        }
    }

    /// The target has restarted.
    pub(super) fn restarted(&mut self) {
        self.fence = match self.fence {
            FenceTruth::Made => FenceTruth::Stale { was_fenced: true },
            FenceTruth::Watched => FenceTruth::Stale { was_fenced: false },
            other => other,
        };
    }

    /// Something happens to the claim or the fence.
    pub(super) fn own(&mut self) {
        let was_fenced = match self.fence {
            FenceTruth::Made | FenceTruth::Lost => true,
            FenceTruth::Stale { was_fenced } => was_fenced,
            FenceTruth::None | FenceTruth::Watched => false,
        };
        let key = ::mirror::key::FenceKey::new(1 + self.dice.below(9), 1);
        let event = match self.dice.below(10) {
            0 => OwnershipEvent::Claimed {
                is_reserved: self.dice.coin(),
            },
            1 | 2 => OwnershipEvent::FenceBegins,
            3 | 4 if self.is_claimed => OwnershipEvent::Fenced(key),
            5 if was_fenced => OwnershipEvent::FenceGone,
            6 if was_fenced => OwnershipEvent::FenceSuperseded,
            7 | 8 => OwnershipEvent::Looked,
            _ => OwnershipEvent::StartedAgain,
        };
        match event {
            OwnershipEvent::Claimed { .. } => self.is_claimed = true,
            OwnershipEvent::FenceBegins => (self.is_claimed, self.fence) = (true, FenceTruth::None),
            OwnershipEvent::Fenced(_) => self.fence = FenceTruth::Made,
            OwnershipEvent::FenceGone | OwnershipEvent::FenceSuperseded => {
                self.fence = FenceTruth::Lost;
            }
            OwnershipEvent::Looked if !was_fenced => self.fence = FenceTruth::Watched,
            OwnershipEvent::StartedAgain => self.restarted(),
            OwnershipEvent::Looked | OwnershipEvent::ClaimBegins | OwnershipEvent::ClaimEnds => {}
        }
        let looks = matches!(event, OwnershipEvent::Looked);
        self.tell(Event::Ownership(event));
        let is_forgotten = !self.has_cache || self.told.is_volatile;
        assert!(!looks || is_forgotten, "a cache that has gone again");
    }

    pub(super) fn check_disk(&self) {
        let machine = &self.driven.machine;
        let mode = match self.is_open {
            true => self.told,
            false => Mode::UNTOLD,
        };
        assert_eq!(machine.mode(), mode);
        assert_eq!(self.followed, self.told, "what changes is followed");
        let is_other = machine.check_blocks().is_err();
        assert_eq!(
            is_other, self.has_other_blocks,
            "each address would mean another place"
        );
        assert!(
            !is_other || machine.is_open(Subject::Capacity),
            "it is asked again"
        );
        let is_fit = !matches!(self.fence, FenceTruth::Stale { .. } | FenceTruth::Lost);
        assert_eq!(
            machine.check_fence().is_ok(),
            is_fit,
            "it may be older than it was"
        );
    }
}
