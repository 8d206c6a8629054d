//! What is true of the nexuses, and what may happen to them: what they have left, and what they report.

use super::*;

/// What is true of a nexus, whatever the machine knows.
#[derive(Clone, Copy)]
pub(super) struct Truth {
    pub(super) path: PathId,
    /// It has taken its place on the path.
    pub(super) has_come: bool,
    pub(super) is_retired: bool,
    pub(super) has_ended: bool,
    /// When that was noticed.
    ended_at: Option<Instant>,
    /// Its loss was dealt with.
    pub(super) is_lost: bool,
    /// Writes of it may still land, as far as anybody has done anything about it.
    pub(super) may_land: bool,
    /// Its initiator port has logged in again.
    is_reinstated: bool,
    /// Writes of it may land at any time, as nobody has ended them.
    is_unfenced: bool,
    pub(super) doubts: u64,
    pub(super) is_in_use: bool,
    /// Our reset is still to be reported on it.
    expects_reset: bool,
    /// It has reported what may be known, and nobody has looked at that.
    news: News,
}

impl World {
    pub(super) fn pick(&mut self) -> Option<usize> {
        let count = self.nexuses.len();
        (count > 0).then(|| self.dice.below(count as u64) as usize)
    }

    fn some(&mut self) -> Vec<NexusId> {
        let all: Vec<_> = self.nexuses.iter().map(|(nexus, _)| *nexus).collect();
        all.into_iter().filter(|_| self.dice.coin()).collect()
    }

    fn truth(&mut self, nexus: NexusId) -> Option<&mut Truth> {
        let mut all = self.nexuses.iter_mut();
        all.find(|(it, _)| *it == nexus).map(|(_, truth)| truth)
    }

    /// Its session ends.
    pub(super) fn end(&mut self, nexus: NexusId) {
        let (left_writes, why) = (self.dice.coin(), gone());
        self.tell(Event::Ended {
            nexus,
            left_writes,
            why,
        });
        let now = self.driven.now;
        let truth = self.truth(nexus).expect("it is known");
        (truth.has_ended, truth.may_land) = (true, left_writes);
        truth.ended_at = Some(now);
    }

    pub(super) fn admit(&mut self, path: PathId) -> NexusId {
        let nexus = self.driven.admit(path);
        let truth = Truth {
            path,
            has_come: false,
            is_retired: false,
            has_ended: false,
            ended_at: None,
            is_lost: false,
            may_land: false,
            is_reinstated: false,
            is_unfenced: false,
            doubts: 0,
            is_in_use: false,
            expects_reset: false,
            news: News::default(),
        };
        self.nexuses.push((nexus, truth));
        nexus
    }

    /// Nobody refers to it any more.
    pub(super) fn is_forgotten(&self, nexus: NexusId, truth: Truth) -> bool {
        let is_latest = self.paths[truth.path.0].latest == Some(nexus);
        truth.has_ended && !truth.may_land && !is_latest && (truth.is_lost || !truth.has_come)
    }

    /// Requests are sent over it from now on.
    pub(super) fn goes_into_use(&mut self, nexus: NexusId) {
        self.tell(Event::InUse(nexus));
        let is_asked = self.is_asked(nexus);
        let truth = self.truth(nexus).expect("it is known");
        truth.is_in_use = true;
        truth.news.was_reset = false;
        truth.news.has_restarted &= is_asked;
    }

    pub(super) fn reinstate(&mut self, at: usize) {
        let (nexus, truth) = &mut self.nexuses[at];
        truth.is_reinstated = true;
        let nexus = *nexus;
        self.tell(Event::Reinstated(nexus));
    }

    /// Nobody ends its writes any more.
    pub(super) fn give_up(&mut self, at: usize) {
        let (nexus, truth) = &mut self.nexuses[at];
        truth.is_unfenced |= truth.may_land && !truth.is_reinstated;
        truth.may_land = false;
        self.has_unfenced |= truth.is_unfenced;
        let nexus = *nexus;
        self.tell(Event::GivenUp(nexus));
    }

    /// A reset begins, or has failed.
    pub(super) fn reset(&mut self, begins: bool) {
        let told = self.some();
        self.expect_reset(&told, begins);
        self.tell(match begins {
            true => Event::ResetBegins(told),
            false => Event::ResetFailed(told),
        });
    }

    fn expect_reset(&mut self, told: &[NexusId], is_expected: bool) {
        for nexus in told {
            let truth = self.truth(*nexus).expect("it is known");
            truth.expects_reset = is_expected;
        }
    }

    /// A reset ends what was left before it, and nothing that is alive.
    pub(super) fn reset_done(&mut self) {
        let is_stale = |(nexus, _): &(NexusId, Truth)| {
            let is_it = self.driven.machine.may_still_write(*nexus);
            is_it.then_some(*nexus)
        };
        let stale: Vec<_> = self.nexuses.iter().filter_map(is_stale).collect();
        for (nexus, truth) in &mut self.nexuses {
            truth.may_land &= !stale.contains(nexus);
        }
        let live = self.some();
        self.expect_reset(&live, true);
        self.tell(Event::ResetDone { stale, live });
    }

    /// It has reported every reset.
    pub(super) fn reset_heard(&mut self, nexus: NexusId) {
        self.expect_reset(&[nexus], false);
        self.tell(Event::ResetHeard(nexus));
    }

    /// Whether it is asked about a restart that some nexus has reported.
    fn is_asked(&self, nexus: NexusId) -> bool {
        let mut all = self.asked.rounds.iter().chain(&self.asked.again);
        all.any(|(told, others)| *told == nexus || others.contains(&nexus))
    }

    /// The target reports something on a nexus.
    pub(super) fn report(&mut self, at: usize) {
        let report = Report {
            capacity: self.dice.coin(),
            mode: self.dice.coin(),
            reservations: self.dice.coin(),
            access: self.dice.coin(),
            reset: self.dice.coin(),
            aborts: self.dice.coin(),
            restart: self.dice.one_in(4),
        };
        let (nexus, truth) = self.nexuses[at];
        let is_ours = report.reset && truth.expects_reset;
        let may_be_known = !truth.is_in_use || self.is_asked(nexus);
        let counts = report.restart && !may_be_known && !is_ours;
        let others = self.others_in_use(nexus);
        let asked_before = self.asked.aborts;
        let told = self.tell(Event::Reported(nexus, report));
        assert_eq!(
            told.contains(&Action::OurReset),
            is_ours,
            "ours is no restart, and each nexus reports it once"
        );
        assert_eq!(
            told.contains(&Action::Lose),
            counts,
            "a restart counts once, and a reset loses nothing"
        );
        let asks = asked(&told).map(|(_, others)| others);
        let may_report = Some(others).filter(|it| counts && !it.is_empty());
        assert_eq!(asks, may_report, "each that may report it is asked");
        let is_aborting = report.aborts && !report.restart && !may_be_known && !is_ours;
        let asks_about_aborts = told.contains(&Action::AskAboutAborts(nexus));
        assert_eq!(
            asks_about_aborts,
            is_aborting && !asked_before,
            "once at a time"
        );
        self.restarts += u64::from(counts);
        let (_, truth) = &mut self.nexuses[at];
        truth.expects_reset &= !report.reset;
        if !is_ours {
            truth.news.has_restarted |= report.restart && may_be_known;
            truth.news.was_reset |= report.reset && !truth.is_in_use;
        }
    }

    /// Those that may report the restart that `told` has reported.
    fn others_in_use(&self, told: NexusId) -> Vec<NexusId> {
        let all = self.nexuses.iter();
        let others = all.filter(|(it, truth)| *it != told && truth.is_in_use && !truth.has_ended);
        let mut others: Vec<_> = others.map(|(nexus, _)| *nexus).collect();
        others.sort_unstable();
        others
    }

    /// Somebody looks at what a nexus has reported, and counts the restart.
    pub(super) fn take_news(&mut self, at: usize) {
        let (nexus, truth) = &mut self.nexuses[at];
        let nexus = *nexus;
        if !truth.news.has_restarted {
            return;
        }
        truth.news = News::default();
        self.tell(Event::NewsTaken(nexus));
        self.restarts += 1;
        self.tell(Event::Restarted);
    }

    /// A question is answered.
    pub(super) fn answer(&mut self) {
        if let Some((told, others)) = self.asked.again.pop() {
            let has_answered = self.dice.coin();
            let loses = !has_answered || self.has_heard(told);
            let actions = self.tell(Event::HeardAgain {
                told,
                others: others.clone(),
                has_answered,
            });
            assert_eq!(
                actions.contains(&Action::LoseOfRound),
                loses,
                "what the first one then reports is another restart"
            );
            self.end_round(told, &others);
        } else if let Some((told, others)) = self.asked.rounds.pop() {
            let is_repeated = others.iter().any(|other| self.has_heard(*other));
            let loses = !is_repeated && self.has_heard(told);
            let actions = self.tell(Event::Heard {
                told,
                others: others.clone(),
            });
            assert_eq!(actions.contains(&Action::AskAgain), is_repeated);
            assert_eq!(
                actions.contains(&Action::LoseOfRound),
                loses,
                "it was another restart, as no other has reported it"
            );
            if !is_repeated {
                self.end_round(told, &others);
            }
        } else if self.asked.lanes > 0 {
            self.asked.lanes -= 1;
            self.tell(Event::LanesJudged);
        } else if self.asked.aborts {
            self.asked.aborts = false;
            self.tell(Event::AbortsHeard);
        }
    }

    fn has_heard(&self, nexus: NexusId) -> bool {
        let mut all = self.nexuses.iter();
        all.any(|(it, truth)| *it == nexus && truth.news.has_restarted)
    }

    /// What was reported in the round is known now, unless it is asked for another.
    fn end_round(&mut self, told: NexusId, others: &[NexusId]) {
        for nexus in others.iter().chain([&told]) {
            let is_asked = self.is_asked(*nexus);
            if let Some(truth) = self.truth(*nexus) {
                truth.news.has_restarted &= is_asked;
            }
        }
    }

    pub(super) fn check_nexus(&self, nexus: NexusId, truth: &Truth) {
        let machine = &self.driven.machine;
        let is_held = machine.may_still_write(nexus);
        assert_eq!(is_held, truth.may_land, "no write may overtake a lost one");
        assert_eq!(
            machine.is_unfenced(nexus),
            truth.is_unfenced,
            "what nobody has ended may still land"
        );
        let can_be_ended_at = truth.ended_at.map(|ended| match truth.is_reinstated {
            true => ended,
            false => ended + QUIET,
        });
        assert_eq!(
            machine.can_be_ended_at(nexus),
            can_be_ended_at,
            "what is on its way arrives before the reset"
        );
        assert_eq!(
            machine.news(nexus),
            truth.news,
            "what was reported before its use"
        );
    }
}
