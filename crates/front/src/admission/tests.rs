//! Which connections make room for which, in single cases and over random histories.

use std::net::{IpAddr, Ipv4Addr};

use super::*;

const PLACES: PlaceLimits = PlaceLimits {
    sessions: 4,
    reserved: 2,
    logins: 6,
    logins_per_peer: 3,
};

fn host(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

fn admission() -> Admission<()> {
    Admission::new(PLACES)
}

/// The number of the connection that arrived from host `n`, and the one it displaced.
fn arrive(admission: &Admission<()>, n: u8) -> (u64, Option<(u64, Limit)>) {
    let (id, displaced) = admission.arrive(Peer::of(host(n)), ());
    (
        id,
        displaced.map(|displaced| (displaced.id, displaced.limit)),
    )
}

fn at(second: u64) -> Instant {
    Instant::from_ns(second * 1_000_000_000)
}

fn enter(admission: &Admission<()>, id: u64, initiator: &str) -> bool {
    admission.enter(id, initiator, at(0))
}

fn leave(admission: &Admission<()>, id: u64) {
    admission.leave(id, at(1));
}

fn log_in(admission: &Admission<()>, n: u8, initiator: &str) -> u64 {
    let (id, _) = arrive(admission, n);
    admission.begin(id, initiator);
    assert!(
        enter(admission, id, initiator),
        "{initiator} finds no place"
    );
    id
}

#[test]
fn one_of_the_older_half_makes_room_and_the_new_one_is_let_in() {
    let admission = admission();
    let mut all: Vec<u64> = (1..=6).map(|n| arrive(&admission, n).0).collect();
    for n in 7..200 {
        let (new, displaced) = arrive(&admission, n);
        let (gone, limit) = displaced.expect("there is no room");
        assert_eq!(limit, Limit::Logins);
        let place = all.iter().position(|id| *id == gone).expect("it was there");
        assert!(place < 3, "{gone} of {all:?}");
        all.remove(place);
        all.push(new);
    }
}

#[test]
fn a_host_beyond_its_share_crowds_out_its_own_only() {
    let admission = admission();
    let (other, _) = arrive(&admission, 9);
    let mut own: Vec<u64> = (0..3).map(|_| arrive(&admission, 1).0).collect();
    for _ in 0..20 {
        let (new, displaced) = arrive(&admission, 1);
        let (gone, limit) = displaced.expect("it has its share");
        assert!(own.contains(&gone) && limit == Limit::LoginsPerPeer);
        own.push(new);
    }
    assert!(enter(&admission, other, "b"), "it was not touched");
}

#[test]
fn the_silent_leave_before_those_that_log_in_and_strangers_before_the_known() {
    let admission = admission();
    let known = log_in(&admission, 1, "db");
    leave(&admission, known);
    let (silent_known, _) = arrive(&admission, 1);
    let (by_name, _) = arrive(&admission, 2);
    admission.step(by_name);
    admission.begin(by_name, "db");
    let (begun, _) = arrive(&admission, 3);
    admission.step(begun);
    admission.begin(begun, "stranger");
    let (silent, _) = arrive(&admission, 4);
    let (known_begun, _) = arrive(&admission, 1);
    admission.step(known_begun);
    admission.begin(known_begun, "db");
    let order = [silent, begun, by_name, silent_known, known_begun];
    for expected in order {
        let displaced = admission.make_room().expect("somebody is there");
        assert_eq!(displaced.id, expected);
    }
    assert_eq!(admission.make_room(), None);
}

#[test]
fn who_has_the_most_connections_loses_one_first_however_far_they_are() {
    let admission = Admission::new(PlaceLimits {
        logins_per_peer: 6,
        ..PLACES
    });
    let (alone, _) = arrive(&admission, 9);
    let mut crowd: Vec<u64> = (0..5).map(|_| arrive(&admission, 1).0).collect();
    for id in &crowd {
        admission.step(*id);
        admission.begin(*id, "stranger");
    }
    for n in 0..4 {
        // One from anywhere, and one from the crowd's host itself.
        let from = if n % 2 == 0 { 10 + n } else { 1 };
        let (id, displaced) = arrive(&admission, from);
        let (displaced, _) = displaced.expect("there is no room");
        assert!(crowd.contains(&displaced), "{displaced}");
        if from == 1 {
            crowd.push(id);
        }
    }
    assert!(enter(&admission, alone, "b"));
}

#[test]
fn of_one_host_who_is_least_far_leaves_first() {
    let admission = admission();
    let [proven, signed, failed] = [(); 3].map(|()| arrive(&admission, 1).0);
    admission.progress(proven, Progress::Proven);
    admission.progress(signed, Progress::Signed);
    admission.progress(failed, Progress::Failed);
    let share = Limit::LoginsPerPeer;
    let (silent, displaced) = arrive(&admission, 1);
    assert_eq!(displaced, Some((failed, share)));
    let (begun, displaced) = arrive(&admission, 1);
    assert_eq!(displaced, Some((silent, share)));
    // A thousand that merely connect displace each other.
    admission.step(begun);
    assert_eq!(arrive(&admission, 1).1, Some((begun, share)));
    let (mut last, _) = arrive(&admission, 1);
    for _ in 0..1000 {
        let (next, displaced) = arrive(&admission, 1);
        assert_eq!(displaced, Some((last, share)));
        last = next;
    }
    assert!(enter(&admission, signed, "a") && enter(&admission, proven, "b"));
}

/// Many connections of one host: limits that only they reach.
const OF_ONE_HOST: PlaceLimits = PlaceLimits {
    sessions: 4,
    reserved: 2,
    logins: 512,
    logins_per_peer: 64,
};

/// How a crowd spends the time in which the right initiator answers once.
#[derive(Clone, Copy, Debug)]
enum Crowd {
    /// Connects and says nothing.
    Silent,
    /// Sends its first message and waits.
    Begun,
    /// Guesses, and waits for the answer.
    Guessing,
    /// Waits at each step of the way.
    Everywhere,
}

/// The right initiator's login of `steps` messages, while `arrivals` others of its host arrive before each.
fn survives(admission: &Admission<()>, crowd: Crowd, steps: u32, arrivals: u32) -> bool {
    let come = |number: u32| {
        let (id, displaced) = arrive(admission, 1);
        let told = match crowd {
            Crowd::Silent => 0,
            Crowd::Begun => 1,
            Crowd::Guessing => 3,
            Crowd::Everywhere => number % 5,
        };
        for _ in 0..told {
            admission.step(id);
        }
        if told > 0 {
            admission.begin(id, "db");
        }
        if told == 3 {
            admission.progress(id, Progress::Failed);
        }
        displaced.map(|(id, _)| id)
    };
    for number in 0..200 {
        come(number);
    }
    let (right, _) = arrive(admission, 1);
    for step in 0..steps {
        for number in 0..arrivals {
            if come(number) == Some(right) {
                return false;
            }
        }
        admission.step(right);
        if step == 0 {
            admission.begin(right, "db");
        }
    }
    enter(admission, right, "db")
}

#[test]
fn who_goes_on_soon_logs_in_beside_any_crowd_of_its_own_host() {
    let crowds = [
        Crowd::Silent,
        Crowd::Begun,
        Crowd::Guessing,
        Crowd::Everywhere,
    ];
    for crowd in crowds {
        // A quarter of the host's places are taken anew while the right one answers once; in five queues, less.
        let arrivals = match crowd {
            Crowd::Everywhere => 4,
            _ => 16,
        };
        for _ in 0..20 {
            let admission = Admission::new(OF_ONE_HOST);
            let known = log_in(&admission, 1, "db");
            leave(&admission, known);
            assert!(survives(&admission, crowd, 5, arrivals), "{crowd:?}");
        }
    }
}

#[test]
fn a_slow_one_gets_in_some_time_beside_a_crowd_of_its_host() {
    let admission = Admission::new(PlaceLimits {
        sessions: 400,
        ..OF_ONE_HOST
    });
    // As many arrive while it answers as its host has places.
    let entered = (0..200).filter(|_| survives(&admission, Crowd::Begun, 3, 64));
    let entered = entered.count();
    assert!(entered > 4, "{entered} of 200");
}

#[test]
fn who_has_its_turn_next_is_not_displaced_by_who_comes_later() {
    let admission = Admission::new(OF_ONE_HOST);
    let wait = || {
        let (id, displaced) = arrive(&admission, 1);
        admission.step(id);
        admission.awaits_us(id, true);
        (id, displaced.map(|(id, _)| id))
    };
    let first: Vec<u64> = (0..16).map(|_| wait().0).collect();
    for _ in 0..1000 {
        let (_, displaced) = wait();
        assert!(displaced.is_none_or(|id| !first.contains(&id)));
    }
    // Whoever is answered but says no more leaves in its turn, while a new one goes through.
    admission.awaits_us(first[0], false);
    assert!(enter(&admission, first[0], "db"));
}

#[test]
fn more_messages_than_a_login_needs_keep_no_place() {
    let admission = Admission::new(OF_ONE_HOST);
    let (chatty, _) = arrive(&admission, 1);
    for _ in 0..1000 {
        admission.step(chatty);
    }
    let before = admission.lock().events;
    admission.step(chatty);
    assert_eq!(admission.lock().events, before, "it has no new place");
}

#[test]
fn a_known_host_with_a_crowd_keeps_no_stranger_out() {
    let admission = Admission::new(PlaceLimits {
        logins_per_peer: 512,
        ..OF_ONE_HOST
    });
    let known = log_in(&admission, 1, "db");
    leave(&admission, known);
    for _ in 0..512 {
        arrive(&admission, 1);
    }
    let (stranger, _) = arrive(&admission, 99);
    for _ in 0..1000 {
        let (_, displaced) = arrive(&admission, 1);
        let (gone, _) = displaced.expect("there is no room");
        assert_ne!(gone, stranger);
    }
    assert!(enter(&admission, stranger, "new"));
}

#[test]
fn whoever_was_told_to_leave_gets_no_place_any_more() {
    let admission = admission();
    let (id, _) = arrive(&admission, 1);
    assert_eq!(
        admission.make_room().map(|displaced| displaced.id),
        Some(id)
    );
    admission.begin(id, "late");
    assert!(!enter(&admission, id, "late"));
    leave(&admission, id);
}

#[test]
fn a_place_is_kept_for_who_had_it() {
    let admission = admission();
    let database = [log_in(&admission, 1, "db"), log_in(&admission, 1, "db")];
    for id in database {
        leave(&admission, id);
    }
    // Two of four places are reserved; the other two are for anyone.
    log_in(&admission, 2, "a");
    log_in(&admission, 3, "b");
    let (refused, _) = arrive(&admission, 4);
    admission.begin(refused, "c");
    assert!(!enter(&admission, refused, "c"));
    log_in(&admission, 1, "db");
    log_in(&admission, 5, "db");
    let (third, _) = arrive(&admission, 1);
    assert!(!enter(&admission, third, "db"), "it had two");
}

#[test]
fn places_are_kept_for_the_longest_sessions() {
    let admission = admission();
    for (n, name, end) in [(1, "a", 100), (2, "b", 3), (3, "c", 200)] {
        let id = log_in(&admission, n, name);
        admission.leave(id, at(end));
    }
    // `b` is forgotten because only two places are reserved, and so are the visitors that come and go.
    for n in 0..100 {
        let id = log_in(&admission, 9, &format!("visitor-{n}"));
        admission.leave(id, at(1));
    }
    log_in(&admission, 4, "x");
    log_in(&admission, 5, "y");
    let (id, _) = arrive(&admission, 2);
    assert!(!enter(&admission, id, "b"));
    log_in(&admission, 1, "a");
    log_in(&admission, 3, "c");
}

#[test]
fn who_has_a_place_keeps_it_when_there_are_fewer() {
    let admission = admission();
    let ids: Vec<u64> = (1..=4).map(|n| log_in(&admission, n, "db")).collect();
    leave(&admission, ids[0]);
    admission.set_places(PlaceLimits {
        sessions: 2,
        reserved: 0,
        ..PLACES
    });
    // Three places are taken, and none is reserved for the session that ended.
    let (late, _) = arrive(&admission, 5);
    assert!(!enter(&admission, late, "db"));
    leave(&admission, ids[1]);
    assert!(!enter(&admission, late, "db"));
    leave(&admission, ids[2]);
    assert!(enter(&admission, late, "db"));
}

#[test]
fn accepting_waits_while_too_many_are_still_leaving() {
    let admission = admission();
    let mut told = Vec::new();
    for n in 0..12 {
        assert!(!admission.is_crowded());
        told.extend(arrive(&admission, n).1.map(|(id, _)| id));
    }
    assert!(admission.is_crowded());
    leave(&admission, told[0]);
    assert!(!admission.is_crowded());
}

/// The limits hold over any history, and others cannot shut out a database merely by connecting or by logging in
/// under names of their own.
#[test]
fn the_bounds_hold_over_random_histories() {
    for seed in 1..200u64 {
        let mut state = seed;
        let mut below = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let admission = admission();
        let mut alive: Vec<u64> = Vec::new();
        let mut database = Some(log_in(&admission, 200, "db"));
        for _ in 0..300 {
            match below(8) {
                0..4 => {
                    let (id, displaced) = arrive(&admission, below(9) as u8);
                    alive.push(id);
                    if let Some((gone, _)) = displaced {
                        assert!(alive.contains(&gone), "one before login leaves");
                    }
                }
                4 if !alive.is_empty() => {
                    let id = alive[below(alive.len() as u64) as usize];
                    let name = format!("stranger-{}", below(5));
                    admission.begin(id, &name);
                    enter(&admission, id, &name);
                }
                5 if !alive.is_empty() => {
                    let id = alive.swap_remove(below(alive.len() as u64) as usize);
                    leave(&admission, id);
                }
                6 => {
                    if let Some(id) = database.take() {
                        admission.leave(id, at(3600));
                    } else {
                        database = Some(log_in(&admission, 200, "db"));
                    }
                }
                _ => {}
            }
            let state = admission.lock();
            assert!(state.guests.len() <= PLACES.logins);
            let ranked: usize = state.hosts.values().map(Seats::len).sum();
            assert_eq!(ranked, state.seats_of.len());
            let own = state.seats_of.values().map(|host| host.seats.len());
            assert_eq!(own.clone().sum::<usize>(), state.guests.len());
            assert!(own.max().is_none_or(|most| most <= PLACES.logins_per_peer));
            assert!(state.sessions.len() + state.kept.total <= PLACES.sessions);
            assert!(state.kept.total <= PLACES.reserved);
            assert_eq!(state.kept.by_merit.len(), state.kept.places.len());
        }
    }
}
