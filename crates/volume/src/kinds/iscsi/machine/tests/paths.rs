//! Scripts of what happens to paths, and once went wrong.

use super::*;
use crate::kinds::iscsi::access::PathAccess;

fn refusal() -> Error {
    Error::new(ErrorKind::Configuration, "authorization failure")
}

/// Offers of which none is better than another.
fn equal(_: PathId) -> Offer {
    Offer {
        is_silent: false,
        is_there: false,
        load: 0,
    }
}

impl Driven {
    /// Lets time pass until a login over `path`, which is being brought back, is due. Returns how long that was.
    fn until_due(&mut self, path: PathId) -> Duration {
        let mut waited = Duration::ZERO;
        loop {
            match self.on(path, PathEvent::Due)[..] {
                [Action::LogInLater(pause)] => {
                    self.now += pause;
                    waited += pause;
                }
                [Action::LogIn] => return waited,
                ref other => panic!("it is not brought back: {other:?}"),
            }
        }
    }

    fn pick(&mut self, writes: bool) -> Option<PathId> {
        self.machine.pick(writes, equal)
    }

    /// From now on these are wanted, in this order.
    fn adopt(&mut self, paths: &[PathId]) -> Actions {
        let numbered = paths.iter().enumerate();
        let place = |(rank, path): (usize, &PathId)| {
            let is_spare = false;
            (*path, PathPlace { rank, is_spare })
        };
        self.tell(Event::Adopted(numbered.map(place).collect()))
    }
}

/// Decision 41: an address to which a target once moved, and where nobody answers any more, must not take the time of every
/// login.
pub(super) fn where_a_target_has_once_moved_to_is_not_tried_for_ever() {
    let mut driven = Driven::open();
    let path = driven.path(false);
    let there = std::net::SocketAddr::from(([10, 0, 0, 2], 3260));
    assert_eq!(driven.machine.moved(path), None);
    let moved = Some(there);
    driven.on(path, PathEvent::LoggedIn { moved });
    let nexus = driven.log_in(path);
    assert_eq!(
        driven.lose(nexus, true)[..],
        [Action::TellLoss(path), Action::Recover(path)]
    );
    assert_eq!(driven.machine.moved(path), Some(there), "it is tried first");
    driven.until_due(path);
    driven.on(path, PathEvent::Recovered(Some(gone())));
    assert_eq!(driven.machine.moved(path), None, "and only once");
}

/// Decision 22: also of a path that was removed.
pub(super) fn what_a_removed_path_has_left_holds_writes_back() {
    let mut driven = Driven::open();
    let [stays, goes] = [driven.path(false), driven.path(false)];
    driven.log_in(stays);
    let lost = driven.log_in(goes);
    driven.adopt(&[stays]);
    let told = driven.lose(lost, true);
    assert_eq!(told[..], [Action::Recover(goes)]);
    assert_eq!(driven.pick(true), None);
    assert_eq!(driven.pick(false), Some(stays));
    driven.tell(Event::ResetDone {
        stale: vec![lost],
        live: Vec::new(),
    });
    assert_eq!(driven.pick(true), Some(stays));
    // Nobody misses it any more.
    assert!(driven.on(goes, PathEvent::Due).is_empty());
    assert!(driven.machine.is_free(goes));
}

/// Decision 22: two initiators that log in as the same port must not end each other's sessions all the time; but whoever
/// looks at the disk sees that it is there again.
pub(super) fn a_lone_path_that_nobody_waits_for_comes_back_at_leisure() {
    let mut driven = Driven::open();
    let path = driven.path(false);
    let mut pauses = Vec::new();
    for _ in 0..3 {
        let nexus = driven.log_in(path);
        let told = driven.lose(nexus, false);
        let Some(Action::ComeBackIn(pause)) = told.last() else {
            panic!("it is brought back at once, or never: {told:?}");
        };
        pauses.push(*pause);
        driven.now += *pause;
        assert_eq!(driven.tell(Event::ComeBack)[..], [Action::Recover(path)]);
        driven.until_due(path);
        let nexus = driven.log_in(path);
        assert!(driven.on(path, PathEvent::Recovered(None)).is_empty());
        assert!(driven.machine.is_live(path), "{nexus:?}");
    }
    assert!(pauses.is_sorted() && pauses[0] < pauses[2], "{pauses:?}");
}

#[test]
fn removed_paths_and_lone_ones_are_not_forgotten() {
    what_a_removed_path_has_left_holds_writes_back();
    a_lone_path_that_nobody_waits_for_comes_back_at_leisure();
}

/// Decision 22: writes that a lone path has left are fenced at once.
#[test]
fn a_lone_path_that_has_left_writes_is_brought_back_at_once() {
    let mut driven = Driven::open();
    let path = driven.path(false);
    let nexus = driven.log_in(path);
    let told = driven.lose(nexus, true);
    assert_eq!(told[..], [Action::TellLoss(path), Action::Recover(path)]);
}

/// Each path is brought back by one, whatever happens meanwhile, and its loss is told once.
#[test]
fn a_lost_path_is_brought_back_by_one_and_told_once() {
    let mut driven = Driven::open();
    let [one, other] = [driven.path(false), driven.path(false)];
    let [first, second] = [driven.log_in(one), driven.log_in(other)];
    let told = driven.lose(first, false);
    assert_eq!(told[..], [Action::TellLoss(one), Action::Recover(one)]);
    assert_eq!(
        driven.lose(second, false)[..],
        [Action::TellLoss(other), Action::Recover(other)]
    );
    assert!(driven.tell(Event::BringBack).is_empty());
    driven.until_due(one);
    driven.on(one, PathEvent::Recovered(Some(gone())));
    let again = driven.until_due(one);
    assert!(again > Duration::ZERO, "it is tried less and less often");
    let nexus = driven.log_in(one);
    // It was lost again before anybody noticed that it was back.
    driven.end(nexus, false);
    let told = driven.on(one, PathEvent::Recovered(None));
    assert_eq!(told[..], [Action::Recover(one)]);
    assert_eq!(driven.tell(Event::Lost(nexus))[..], [Action::TellLoss(one)]);
}

/// Whoever reads the log is told of a loss by one line, and not of that which follows from a logout.
#[test]
fn a_loss_is_told_once_until_the_path_is_back() {
    let mut driven = Driven::open();
    let path = driven.path(false);
    for _ in 0..2 {
        let nexus = driven.log_in(path);
        driven.tell(Event::Retires(nexus));
        let told = driven.on(path, PathEvent::LogoutRequested);
        assert_eq!(told[..], [Action::TellLoss(path)]);
        let told = driven.lose(nexus, true);
        assert_eq!(told[..], [Action::Recover(path)]);
        driven.until_due(path);
        driven.log_in(path);
        driven.on(path, PathEvent::Recovered(None));
    }
}

/// A target that lets us in on one path only is not asked all the time, unless that path is gone.
#[test]
fn a_path_that_is_refused_leaves_the_other_one_alone() {
    let mut driven = Driven::open();
    let [works, refused] = [driven.path(false), driven.path(false)];
    let [working, lost] = [driven.log_in(works), driven.log_in(refused)];
    driven.lose(lost, false);
    driven.until_due(refused);
    let told = driven.on(refused, PathEvent::Recovered(Some(refusal())));
    assert_eq!(told[..], [Action::TellRefusal(refused)]);
    assert!(driven.until_due(refused) > Duration::from_secs(5));
    let told = driven.on(refused, PathEvent::Recovered(Some(refusal())));
    assert!(told.is_empty(), "the same reason is told once");
    driven.until_due(refused);
    driven.lose(working, false);
    driven.on(refused, PathEvent::Recovered(Some(refusal())));
    assert!(driven.until_due(refused) <= Duration::from_secs(1));
}

/// Decision 41: tgt's portal listens before its targets are there.
#[test]
fn a_refusal_is_final_only_where_nobody_was_let_in_or_another_disk_is() {
    let mut driven = Driven::open();
    let path = driven.path(false);
    driven.on(path, PathEvent::LoginFailed(refusal()));
    assert!(driven.machine.are_all_refused(), "it was never let in");
    let nexus = driven.log_in(path);
    driven.lose(nexus, false);
    driven.tell(Event::BringBack);
    driven.until_due(path);
    driven.on(path, PathEvent::Recovered(Some(refusal())));
    assert!(!driven.machine.are_all_refused(), "it may be starting");
    let elsewhere = PathEvent::Identified {
        port_group: None,
        is_elsewhere: true,
    };
    driven.on(path, elsewhere);
    assert!(driven.machine.are_all_refused());
}

/// Decision 26: a target that takes no more sessions is used with fewer.
#[test]
fn a_spare_path_that_is_refused_at_first_is_given_up_and_no_other() {
    for (is_spare, error, is_given_up) in [
        (true, refusal(), true),
        (true, gone(), false),
        (false, refusal(), false),
    ] {
        let mut driven = Driven::open();
        let first = driven.path(false);
        driven.log_in(first);
        let path = driven.path(is_spare);
        let told = driven.on(path, PathEvent::OpenFailed(error));
        assert_eq!(told.contains(&Action::TellGivenUp(path)), is_given_up);
        let brought_back = driven.tell(Event::BringBack);
        assert_eq!(brought_back.is_empty(), is_given_up, "{brought_back:?}");
    }
}

/// A write must not reach a target port that is on standby, nor a session that is about to log out or in doubt.
#[test]
fn a_command_takes_the_best_path_that_may_be_used() {
    let mut driven = Driven::open();
    let paths = [driven.path(false), driven.path(false), driven.path(false)];
    let nexuses = paths.map(|path| driven.log_in(path));
    let picked: Vec<_> = (0..4).map(|_| driven.pick(true)).collect();
    assert_eq!(
        picked,
        [paths[0], paths[1], paths[2], paths[0]].map(Some),
        "in turn"
    );
    driven.on(paths[1], PathEvent::Access(PathAccess::NonOptimized));
    driven.tell(Event::Retires(nexuses[0]));
    assert_eq!(driven.pick(true), Some(paths[2]));
    assert_eq!(driven.pick(true), Some(paths[2]), "nothing better");
    driven.tell(Event::DoubtedNexus(nexuses[2], 1));
    assert_eq!(driven.pick(true), Some(paths[1]));
    driven.on(paths[1], PathEvent::Access(PathAccess::No));
    assert_eq!(driven.pick(true), None);
    driven.tell(Event::Sure(nexuses[2], 1));
    assert_eq!(driven.pick(true), Some(paths[2]));
    driven.tell(Event::Held);
    assert_eq!(driven.pick(false), None);
}

/// A target that fails over is asked until a path may be used, and then from time to time until all are optimal.
#[test]
fn access_is_asked_for_until_a_path_may_be_used_and_watched_until_all_are_optimal() {
    let mut driven = Driven::open();
    let [one, other] = [driven.path(false), driven.path(false)];
    let [lost, _] = [driven.log_in(one), driven.log_in(other)];
    driven.on(other, PathEvent::Access(PathAccess::No));
    let told = driven.lose(lost, false);
    assert!(told.contains(&Action::AskAccess), "{told:?}");
    assert!(driven.tell(Event::AccessDoubted).is_empty(), "it is asked");
    let told = driven.tell(Event::AccessAsked);
    assert!(matches!(told[..], [Action::AskAccessAgainIn(_)]));
    driven.on(other, PathEvent::Access(PathAccess::NonOptimized));
    let told = driven.tell(Event::AccessAsked);
    assert!(matches!(told[..], [Action::WatchAccess(_)]));
    let told = driven.tell(Event::AccessDue);
    assert!(matches!(
        told[..],
        [Action::AskAccess, Action::WatchAccess(_)]
    ));
    driven.on(other, PathEvent::Access(PathAccess::Optimized));
    assert!(driven.tell(Event::AccessAsked).is_empty(), "it is watched");
    assert_eq!(driven.tell(Event::AccessDue)[..], [Action::AskAccess]);
    assert!(driven.tell(Event::AccessAsked).is_empty(), "all is well");
}

/// A disk that was closed lets its lost paths be, until it is used again.
#[test]
fn what_rests_brings_nothing_back() {
    let mut driven = Driven::open();
    let [one, other] = [driven.path(false), driven.path(false)];
    let nexus = driven.log_in(one);
    driven.log_in(other);
    driven.lose(nexus, false);
    driven.tell(Event::Rests);
    assert!(driven.on(one, PathEvent::Due).is_empty());
    assert!(driven.tell(Event::ComeBack).is_empty());
    assert_eq!(driven.tell(Event::BringBack)[..], [Action::Recover(one)]);
}

/// Resets that fail hold up the commands of the other paths: they are tried less and less often.
#[test]
fn a_reset_that_fails_is_tried_less_often_while_there_are_other_paths() {
    let mut driven = Driven::open();
    let path = driven.path(false);
    let other = driven.nexus();
    let mut pauses = Vec::new();
    for _ in 0..4 {
        let began = driven.now;
        let is_done = false;
        driven.on(path, PathEvent::ResetTried { began, is_done });
        let pause = driven.machine.reset_due_in(path, driven.now);
        driven.now += pause;
        pauses.push(pause);
    }
    assert!(pauses.windows(2).all(|two| two[0] < two[1]), "{pauses:?}");
    let began = driven.now;
    let is_done = true;
    driven.on(path, PathEvent::ResetTried { began, is_done });
    assert!(driven.machine.reset_due_in(path, driven.now).is_zero());
    let is_done = false;
    driven.on(path, PathEvent::ResetTried { began, is_done });
    assert!(!driven.machine.reset_due_in(path, driven.now).is_zero());
    driven.lose(other, false);
    assert!(driven.machine.reset_due_in(path, driven.now).is_zero());
}

/// Why there is no path: the first one's reason, and those of the others.
#[test]
fn each_path_that_cannot_be_used_says_why() {
    let mut driven = Driven::open();
    let [one, other] = [driven.path(false), driven.path(false)];
    driven.on(one, PathEvent::LoginFailed(refusal()));
    let nexus = driven.log_in(other);
    driven.lose(nexus, false);
    let why = driven.machine.why().to_string();
    for said in [
        "none of the 2 paths can be used (the target is gone)",
        "authorization failure",
    ] {
        assert!(why.contains(said), "{why}");
    }
}
