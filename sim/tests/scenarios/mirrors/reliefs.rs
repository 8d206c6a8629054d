//! What happens while one owner of a mirror relieves the other: to the owner that is relieved, to the ways to storages and
//! register, and to those.

use std::{rc::Rc, time::Duration};

use engine::{
    sim::{Random, TrafficDirection},
    spawn, time,
};
use sim::{
    machine::End,
    two_owners::{REGISTER, TwoOwners},
    workload::random_time,
};

use super::mishaps::{Met, count};
use crate::MS;

const SECOND: Duration = Duration::from_secs(1);

/// What happens beside a relief.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beside {
    /// The owner stands still, and goes on later.
    Pause,
    /// It falls.
    Fall(End),
    /// It falls, and claims the mirror anew at once.
    Return(End),
    /// The way of an owner to a storage or the register is cut, in one direction or in both.
    Cut(usize, usize, Option<TrafficDirection>),
    /// A storage or the register falls.
    ServedFalls(usize, End),
    /// One stands still.
    ServedPauses(usize),
    /// A storage falls and loses its state directory, and with it who has reserved it.
    Forget(usize),
    /// Writes to a copy hang, each by itself.
    Hang(usize),
}

impl Beside {
    pub(super) fn draw(random: &mut Random) -> Beside {
        let (owner, far, storage) = (random.index(2), random.index(3), random.index(2));
        let end = [End::PowerCut, End::Killed][random.index(2)];
        let ways = [
            None,
            Some(TrafficDirection::To),
            Some(TrafficDirection::From),
        ];
        match random.below(18) {
            0..=2 => Beside::Pause,
            3..=4 => Beside::Fall(end),
            5..=6 => Beside::Return(end),
            7..=10 => Beside::Cut(owner, far, ways[random.index(3)]),
            11..=12 => Beside::ServedFalls(far, end),
            13 => Beside::ServedPauses(far),
            14 => Beside::Forget(storage),
            _ => Beside::Hang(storage),
        }
    }

    /// What it brings down, or holds up: not by two at once.
    pub(super) fn place(self, site: &TwoOwners) -> usize {
        match self {
            Beside::Pause | Beside::Fall(_) | Beside::Return(_) => REGISTER + 1 + site.owner(),
            Beside::Cut(_, far, _) | Beside::ServedFalls(far, _) | Beside::ServedPauses(far) => far,
            Beside::Forget(storage) | Beside::Hang(storage) => storage,
        }
    }

    fn case(self) -> &'static str {
        match self {
            Beside::Pause => "owners that stand still",
            Beside::Fall(_) => "owners that fall",
            Beside::Return(_) => "owners that fall and claim it anew",
            Beside::Cut(_, REGISTER, _) => "cuts between an owner and the register",
            Beside::Cut(_, _, None) => "cuts between an owner and a storage",
            Beside::Cut(..) => "cuts of one way between an owner and a storage",
            Beside::ServedFalls(REGISTER, _) => "registers that fall",
            Beside::ServedFalls(..) => "storages that fall",
            Beside::ServedPauses(_) => "storages or registers that stand still",
            Beside::Forget(_) => "storages that lose their state directories",
            Beside::Hang(_) => "copies whose writes hang",
        }
    }

    /// Has it happen to `owner`, and undoes it.
    pub(super) async fn happen(
        self,
        site: &Rc<TwoOwners>,
        owner: usize,
        met: &Met,
        random: &mut Random,
    ) {
        count(met, self.case(), 1);
        let longest = [500 * MS, 500 * MS, 5 * SECOND, 30 * SECOND][random.index(4)];
        let down = random_time(random, longest);
        match self {
            Beside::Pause => site.pause(owner, down),
            Beside::Fall(how) => site.end_owner(owner, how).await,
            Beside::Return(how) => {
                site.end_owner(owner, how).await;
                let again = site.clone();
                // Its machine may be switched off meanwhile, and then this never ends.
                spawn(async move { again.try_owner(owner).await });
            }
            Beside::Cut(owner, far, way) => {
                let both = [TrafficDirection::To, TrafficDirection::From];
                let ways = both
                    .into_iter()
                    .filter(|one| way.is_none_or(|it| it == *one));
                ways.for_each(|way| site.cut(owner, far, way));
                time::sleep(down).await;
                site.mend(owner, far);
            }
            Beside::ServedFalls(far, how) => {
                site.end(far, how).await;
                time::sleep(down).await;
                site.restart(far, false);
            }
            Beside::ServedPauses(far) => site.pause_served(far, down),
            Beside::Forget(storage) => {
                site.end(storage, End::PowerCut).await;
                time::sleep(down).await;
                site.restart(storage, true);
            }
            Beside::Hang(storage) => {
                let longest = [900 * MS, 8 * SECOND][random.index(2)];
                site.host(storage).hang_writes(0.5, longest);
                time::sleep(down).await;
                site.host(storage).hang_writes(0.0, Duration::ZERO);
            }
        }
    }
}
