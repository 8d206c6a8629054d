//! Strangers connect and stay, begin logins that they never finish, and take every session place they can get. A client
//! that was there before, and whose connections keep breaking, gets back in each time and loses no I/O.

use std::{cell::Cell, rc::Rc, time::Duration};

use engine::{
    Gather,
    net::TcpStream,
    sim::{Host, Occurred, Random, seeds},
    spawn, time,
};
use iscsi::{InitiatorConfig, Isid};
use sim::{
    Setup, Site, assert_occurred,
    raw::RawSession,
    target_machine::PORT,
    workload::{self, Load, check_all, random_time},
};

use crate::MS;

/// More than there are places before and after login together.
const CROWD: usize = 7;
const HOSTS: usize = 3;

/// What a stranger does with a connection.
#[derive(Clone, Copy)]
enum Stranger {
    Silent,
    Babbling,
    /// Half a login.
    Hesitant,
    /// A session under its own name, held as long as possible.
    Staying,
}

const ALL: [Stranger; 4] = [
    Stranger::Silent,
    Stranger::Babbling,
    Stranger::Hesitant,
    Stranger::Staying,
];

/// What all strangers share.
#[derive(Default)]
struct Crowd {
    stop: Cell<bool>,
    /// Sessions that strangers had.
    sessions: Cell<u64>,
}

/// Bothers target `index` in that way until told to stop.
async fn bother(site: Rc<Site>, index: usize, name: usize, mut random: Random, crowd: Rc<Crowd>) {
    let target = &site.targets[index];
    let address = target.host.addr(PORT);
    while !crowd.stop.get() {
        time::sleep(random_time(&mut random, 20 * MS)).await;
        let kind = ALL[random.index(ALL.len())];
        let mut held = None;
        match kind {
            Stranger::Staying => {
                let own = format!("iqn.2026-11.io.sanstone:stranger-{name}");
                let mut config = InitiatorConfig::new(own, Some(target.iqn.clone()));
                config.isid = Isid::random([0; 3], random.below(1 << 16) as u16);
                if let Ok(session) = RawSession::login(address, config).await {
                    crowd.sessions.set(crowd.sessions.get() + 1);
                    // It stays for as long as the session lasts.
                    while !crowd.stop.get() && session.execute(&[0; 6], &[], 0).await.is_ok() {
                        time::sleep(500 * MS).await;
                    }
                    session.end();
                }
            }
            Stranger::Silent => held = TcpStream::connect(address).await.ok(),
            Stranger::Babbling | Stranger::Hesitant => {
                held = TcpStream::connect(address).await.ok();
                if let Some(stream) = &held {
                    let mut gather = Gather::new();
                    let mut header = [0x43; 48];
                    if matches!(kind, Stranger::Babbling) {
                        header.fill_with(|| random.below(256) as u8);
                    }
                    gather.push_bytes(&header[..1 + random.index(48)]);
                    let _ = stream.send_all(gather).await;
                }
            }
        }
        time::sleep(random_time(&mut random, 200 * MS)).await;
        drop(held);
    }
}

fn let_loose(site: &Rc<Site>, random: &mut Random, crowd: &Rc<Crowd>) {
    let hosts: Vec<Host> = (0..HOSTS)
        .map(|n| site.world.host(&format!("stranger-{n}")))
        .collect();
    for index in 0..site.targets.len() {
        for name in 0..HOSTS * CROWD {
            let random = Random::new(random.below(1 << 40));
            let bothering = bother(site.clone(), index, name, random, crowd.clone());
            drop(hosts[name % HOSTS].spawn(bothering));
        }
    }
}

#[test]
fn a_client_that_was_there_before_comes_back_through_any_crowd() {
    let (mut met, mut sessions) = (Occurred::default(), 0);
    seeds(60, |seed| {
        let mut setup = Setup::draw(seed);
        setup.reconnect_timeout = Duration::from_secs(8);
        let site = Site::new(seed, setup);
        site.run(async {
            let volume = site.open().await;
            let mut random = site.world.random();
            let crowd: Rc<Crowd> = Rc::default();
            let_loose(&site, &mut random, &crowd);
            let mut load = Load::default();
            load.requests /= 5;
            for _ in 0..5 {
                time::sleep(200 * MS + random_time(&mut random, 400 * MS)).await;
                let resets = {
                    let (site, mut random) = (site.clone(), random.fork());
                    spawn(async move {
                        for target in &site.targets {
                            time::sleep(random_time(&mut random, 10 * MS)).await;
                            site.client.reset_connections(&target.host);
                            // The target notices it, and has time to give the place away.
                            time::sleep(2 * MS).await;
                            site.client.partition(&target.host);
                            time::sleep(500 * MS + random_time(&mut random, 500 * MS)).await;
                            site.client.heal(&target.host);
                        }
                    })
                };
                let tally = workload::run(&site, &volume, load).await;
                assert!(tally.good > 0);
                resets.await;
            }
            workload::flush(&site, &volume).await.expect("a flush");
            check_all(&site, &volume).await;
            crowd.stop.set(true);
            sessions += crowd.sessions.get();
        });
        met += site.world.occurred();
    });
    assert_occurred([
        ("sessions of strangers", sessions),
        ("resets under data", met.resets_under_data),
        ("packets parted", met.packets_parted),
    ]);
}
