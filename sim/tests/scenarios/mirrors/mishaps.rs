//! What happens to the machines, disks and networks of a mirror.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use ::mirror::{CopyId, CopySet};
use engine::{
    sim::{FaultKind, InjectedFault, Random, TrafficDirection},
    spawn, task, time,
};
use sim::{
    machine::End,
    mirrored::{COPY, Mirrored, STATE, Which},
    workload::{self, Load, random_time},
};
use volume::SharedVolume;

use crate::MS;

const SECOND: Duration = Duration::from_secs(1);
/// No copy is given up later.
const GIVEN_UP: Duration = Duration::from_secs(7);

/// How often each hard case occurred.
pub(super) type Met = Rc<RefCell<BTreeMap<&'static str, usize>>>;

pub(super) fn count(met: &Met, case: &'static str, times: usize) {
    *met.borrow_mut().entry(case).or_default() += times;
}

/// What happens in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mishap {
    Fall(Which, End),
    AllCut,
    Partition(Which),
    OneWay(Which, bool),
    /// Syncs and the files of the daemon hang.
    Stall(Which),
    /// Writes to the copy hang, each by itself.
    Hang(Which),
    /// A few reads or writes of the copy fail.
    Fault(Which),
    /// The disk of the copy is full.
    Full(Which),
    /// Writes to a copy hang while the owner falls, and land when it is back.
    Late(Which, End),
    /// A copy is restored from an older state, at this place.
    Restore(usize),
    LoseState(End),
    /// The register cannot be made durable while a copy leaves, and then the owner loses power.
    Register(Which),
    /// A copy leaves; the other one is slow to note that, and what noted it is lost.
    LoseStateOnLeaving(Which),
    /// A copy leaves and returns, and all lose power once it is in sync.
    CutOnReturn(Which),
    /// All lose power while only the copy here has what is being written, and it comes back after the others.
    Orphan(Which),
}

impl Mishap {
    /// One for a mirror whose second copy is on the machine `second`.
    pub(super) fn draw(random: &mut Random, second: Which) -> Mishap {
        let disk = [Which::A, second][random.index(2)];
        let storage = if disk == Which::Owner { Which::A } else { disk };
        let any = [Which::A, second, Which::Owner][random.index(3)];
        let end = [End::PowerCut, End::PowerCut, End::Killed, End::Stopped][random.index(4)];
        let sudden = [End::PowerCut, End::Killed][random.index(2)];
        match random.below(24) {
            0..=4 => Mishap::Fall(any, end),
            5 => Mishap::AllCut,
            6 => Mishap::Partition(storage),
            7 => Mishap::OneWay(storage, random.chance(0.5)),
            8 => Mishap::Stall(any),
            9..=10 => Mishap::Hang(disk),
            11 => Mishap::Fault(disk),
            12 => Mishap::Full(disk),
            13..=14 => Mishap::Late(storage, sudden),
            15..=17 => Mishap::Restore(random.index(2)),
            18 => Mishap::LoseState(end),
            19 => Mishap::Register(storage),
            20 => Mishap::LoseStateOnLeaving(storage),
            21..=22 => Mishap::CutOnReturn(storage),
            _ => Mishap::Orphan(storage),
        }
    }

    /// Whether the owner falls.
    pub(super) fn fells_owner(self) -> bool {
        match self {
            Mishap::Fall(which, _) => which == Which::Owner,
            Mishap::AllCut
            | Mishap::Late(..)
            | Mishap::LoseState(_)
            | Mishap::Register(_)
            | Mishap::LoseStateOnLeaving(_)
            | Mishap::CutOnReturn(_)
            | Mishap::Orphan(_) => true,
            // If it has that copy.
            Mishap::Restore(place) => place == 1,
            Mishap::Partition(_)
            | Mishap::OneWay(..)
            | Mishap::Stall(_)
            | Mishap::Hang(_)
            | Mishap::Fault(_)
            | Mishap::Full(_) => false,
        }
    }

    /// Whether nothing may happen beside it that brings a machine down.
    pub(super) fn falls(self) -> bool {
        self.fells_owner() || matches!(self, Mishap::Fall(..) | Mishap::Restore(_))
    }

    /// Whether nothing at all may happen beside it: what it does is only repaired if the other copy has all.
    pub(super) fn is_alone(self) -> bool {
        matches!(self, Mishap::Restore(_))
    }

    /// Whether a disk fails what it is asked.
    pub(super) fn has_fault(self) -> bool {
        matches!(self, Mishap::Fault(_) | Mishap::Full(_))
    }

    /// Whether it may put a copy out, or keep it out: the first one, and the other one.
    pub(super) fn puts_out(self) -> [bool; 2] {
        match self {
            Mishap::Fall(which, _)
            | Mishap::Partition(which)
            | Mishap::OneWay(which, _)
            | Mishap::Stall(which)
            | Mishap::Hang(which)
            | Mishap::Fault(which)
            | Mishap::Full(which)
                if which != Which::Owner || !self.fells_owner() =>
            {
                [which == Which::A, which != Which::A]
            }
            // Both are fenced anew.
            _ => [true; 2],
        }
    }
}

/// A mishap, and what it needs.
pub(super) struct Happening {
    pub(super) site: Rc<Mirrored>,
    pub(super) volume: SharedVolume,
    pub(super) random: Random,
    pub(super) met: Met,
    /// What the copies held before this round, and those before it.
    pub(super) backups: Rc<Vec<Rc<[Vec<u8>; 2]>>>,
}

impl Happening {
    fn count(&self, case: &'static str) {
        count(&self.met, case, 1);
    }

    /// How long something is away. Regions are cleared after 10 s, if they may be.
    fn down(&mut self) -> Duration {
        let longest = [500 * MS, 500 * MS, 20 * SECOND, 45 * SECOND][self.random.index(4)];
        random_time(&mut self.random, longest)
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        random_time(&mut self.random, longest)
    }

    pub(super) async fn happen(mut self, mishap: Mishap) {
        let has_in_flight = self.site.model.borrow().in_flight() > 0;
        count(&self.met, "writes in flight", usize::from(has_in_flight));
        match mishap {
            Mishap::Fall(which, how) => self.fall(which, how).await,
            Mishap::AllCut => self.cut_all().await,
            Mishap::Partition(which) => self.part(which).await,
            Mishap::OneWay(which, is_in) => self.cut_one_way(which, is_in).await,
            Mishap::Stall(which) => self.stall(which).await,
            Mishap::Hang(which) => self.hang(which).await,
            Mishap::Fault(which) => self.fail(which, false).await,
            Mishap::Full(which) => self.fail(which, true).await,
            Mishap::Late(which, how) => self.land_late(which, how).await,
            Mishap::Restore(place) => self.restore(place).await,
            Mishap::LoseState(how) => {
                self.count("lost state directories");
                let (down, may_force) = (self.down(), self.random.chance(0.5));
                self.site.lose_state(how, down, may_force).await;
            }
            Mishap::Register(which) => self.lose_swap(which).await,
            Mishap::LoseStateOnLeaving(which) => self.lose_state_on_leaving(which).await,
            Mishap::CutOnReturn(which) => self.cut_on_return(which).await,
            Mishap::Orphan(which) => self.orphan(which).await,
        }
    }

    async fn fall(&mut self, which: Which, how: End) {
        self.count(match (which, how) {
            (Which::Owner, End::PowerCut) => "power cuts of the owner",
            (Which::Owner, End::Killed) => "kills of the owner",
            (Which::Owner, End::Stopped) => "stops of the owner",
            (_, End::PowerCut) => "power cuts of a storage",
            (_, _) => "kills and stops of a storage",
        });
        let down = self.down();
        self.site.fall(which, how, down).await;
    }

    async fn cut_all(&mut self) {
        self.count("power cuts of all");
        self.all_fall(&mut |this, _| this.up_to(10 * SECOND)).await;
    }

    /// All lose power, for as long as `down` says of each. They have begun to when this returns.
    fn all_fall(
        &mut self,
        down: &mut dyn FnMut(&mut Happening, Which) -> Duration,
    ) -> impl Future<Output = ()> + use<> {
        let falls = [Which::A, Which::B, Which::Owner].map(|which| {
            let (site, down) = (self.site.clone(), down(self, which));
            spawn(async move { site.fall(which, End::PowerCut, down).await })
        });
        async move { drop(task::join_all(falls).await) }
    }

    async fn part(&mut self, which: Which) {
        self.count("partitions");
        let owner = self.site.host(Which::Owner).clone();
        let other = self.site.host(which).clone();
        owner.partition(&other);
        time::sleep(self.down()).await;
        owner.heal(&other);
    }

    async fn cut_one_way(&mut self, which: Which, is_in: bool) {
        self.count("cuts of one way");
        let other = self.site.host(which).clone();
        let direction = if is_in {
            TrafficDirection::To
        } else {
            TrafficDirection::From
        };
        other.cut(other.ip(), direction);
        time::sleep(self.down()).await;
        other.mend(other.ip());
    }

    async fn stall(&mut self, which: Which) {
        self.count("disks that stall");
        let host = self.site.host(which).clone();
        host.stall_disk(self.up_to(8 * SECOND));
        time::sleep(self.down()).await;
        host.stall_disk(Duration::ZERO);
    }

    async fn hang(&mut self, which: Which) {
        self.count("disks whose writes hang");
        let host = self.site.host(which).clone();
        let longest = [900 * MS, 8 * SECOND][self.random.index(2)];
        host.hang_writes([0.1, 0.4][self.random.index(2)], longest);
        time::sleep(self.down()).await;
        host.hang_writes(0.0, Duration::ZERO);
    }

    async fn fail(&mut self, which: Which, is_full: bool) {
        let (case, errno, times) = match is_full {
            true => ("full disks", 28, None),
            false => ("disks that fail", 5, Some(1 + self.random.index(3) as u32)),
        };
        self.count(case);
        let kind = match is_full || self.random.chance(0.5) {
            true => FaultKind::Write,
            false => FaultKind::Read,
        };
        let host = self.site.host(which).clone();
        host.add_fault(InjectedFault {
            path: Some(COPY.into()),
            times,
            ..InjectedFault::new(kind, errno)
        });
        time::sleep(self.down()).await;
        host.clear_faults();
    }

    async fn land_late(&mut self, which: Which, how: End) {
        self.count("falls of the owner whose writes hang");
        let host = self.site.host(which).clone();
        let longest = [900 * MS, 8 * SECOND][self.random.index(2)];
        host.hang_writes(0.5, longest);
        time::sleep(self.up_to(80 * MS)).await;
        self.site.end(Which::Owner, how).await;
        // What hangs already is not hurried by that.
        host.hang_writes(0.0, Duration::ZERO);
        time::sleep(self.up_to(500 * MS)).await;
        self.site.restart(Which::Owner).await;
    }

    async fn restore(&mut self, place: usize) {
        let backups = self.backups.clone();
        let mut backup = &backups[self.random.index(backups.len())][place];
        // Of the time since the copy came in sync, long ago for the bitmaps.
        let newer;
        if self.random.chance(0.7) {
            newer = self.site.backup(place);
            backup = &newer;
            time::sleep(25 * SECOND + self.up_to(10 * SECOND)).await;
        }
        let down = GIVEN_UP + self.up_to(10 * SECOND);
        if self.site.restore(place, backup, down).await {
            self.count("restored copies");
        }
    }

    async fn lose_swap(&mut self, which: Which) {
        self.count("registers that cannot be made durable");
        let owner = self.site.host(Which::Owner).clone();
        owner.add_fault(InjectedFault {
            path: Some(STATE.into()),
            times: Some(1 + self.random.index(2) as u32),
            ..InjectedFault::new(FaultKind::Settle, 5)
        });
        let down = self.up_to(10 * SECOND);
        let (site, other) = (self.site.clone(), self.up_to(8 * SECOND));
        let falling = spawn(async move { site.fall(which, End::PowerCut, other).await });
        time::sleep(down).await;
        self.site.end(Which::Owner, End::PowerCut).await;
        owner.clear_faults();
        time::sleep(self.up_to(SECOND)).await;
        self.site.restart(Which::Owner).await;
        falling.await;
    }

    /// Waits until both copies are in sync, or one is not. Returns whether it came to that.
    async fn until_in_sync(&self, wanted: bool) -> bool {
        for _ in 0..30_000 {
            if (self.site.record().in_sync == CopySet::first(2)) == wanted {
                return true;
            }
            time::sleep(MS).await;
        }
        false
    }

    /// The machine with the other copy.
    fn other(&self, which: Which) -> Which {
        match which {
            Which::A => self.site.second(),
            _ => Which::A,
        }
    }

    /// Load beside the other one.
    async fn load(&self, requests: usize, pause_max: Duration) {
        let load = Load {
            errors: true,
            requests,
            pause_max,
            ..Load::default()
        };
        let volume = self.volume.clone();
        workload::run(&self.site, &volume, load).await;
    }

    async fn orphan(&mut self, which: Which) {
        self.count("power cuts of all while one copy is ahead");
        let other = self.other(which);
        let host = self.site.host(other).clone();
        host.hang_writes(1.0, 8 * SECOND);
        time::sleep(self.up_to(30 * MS)).await;
        let away = GIVEN_UP + self.up_to(10 * SECOND);
        let falling = self.all_fall(&mut |this, one| match one == which {
            true => away,
            false => this.up_to(SECOND),
        });
        // They fall at once.
        time::sleep(Duration::ZERO).await;
        host.hang_writes(0.0, Duration::ZERO);
        falling.await;
    }

    async fn lose_state_on_leaving(&mut self, which: Which) {
        let other = self.other(which);
        self.site.end(which, End::PowerCut).await;
        self.site.host(other).hang_writes(0.3, 900 * MS);
        if self.until_in_sync(false).await {
            self.count("lost state directories as a copy has left");
        }
        time::sleep(self.up_to(100 * MS)).await;
        if other != Which::Owner {
            self.site.end(other, End::PowerCut).await;
        }
        self.site.host(other).hang_writes(0.0, Duration::ZERO);
        let down = self.up_to(SECOND);
        let site = self.site.clone();
        let losing = spawn(async move { site.lose_state(End::PowerCut, down, false).await });
        for storage in [which, other] {
            time::sleep(self.up_to(SECOND)).await;
            if storage != Which::Owner {
                self.site.restart(storage).await;
            }
        }
        losing.await;
    }

    async fn cut_on_return(&mut self, which: Which) {
        let place = usize::from(which != Which::A);
        // Until no region is marked, or not.
        let waits = [Duration::ZERO, 45 * SECOND][self.random.index(2)];
        time::sleep(waits).await;
        self.site.end(which, End::PowerCut).await;
        let has_left = self.until_in_sync(false).await;
        // If the other one is out as well, nothing is answered before this one is back.
        if self.site.record().in_sync.contains(CopyId::new(1 - place)) {
            self.load(1, MS).await;
        }
        let host = self.site.host(which).clone();
        host.hang_writes(0.4, 900 * MS);
        self.site.restart(which).await;
        for _ in 0..400 {
            if self.site.has_noted(place) {
                break;
            }
            time::sleep(20 * MS).await;
        }
        // While it is filled.
        let beside = self.beside();
        let loading = spawn(async move { beside.load(20, 40 * MS).await });
        if has_left && self.until_in_sync(true).await {
            self.count("power cuts of all as a copy has returned");
        }
        time::sleep(self.up_to(20 * MS)).await;
        let falling = self.all_fall(&mut |this, _| this.up_to(SECOND));
        host.hang_writes(0.0, Duration::ZERO);
        falling.await;
        loading.await;
    }

    fn beside(&mut self) -> Happening {
        Happening {
            site: self.site.clone(),
            volume: self.volume.clone(),
            random: self.random.fork(),
            met: self.met.clone(),
            backups: self.backups.clone(),
        }
    }
}
