//! An NBD server on both lanes of a machine, beside an iSCSI server on the same disk: clients that write and read,
//! disconnect half-way, send nonsense, or never read replies; and a fence set by an initiator.

use std::{cell::Cell, ops::Range, rc::Rc, time::Duration};

use engine::{
    Buf,
    net::TcpStream,
    sim::{NetConfig, Random, World, WorldConfig, seeds},
    spawn,
    task::join_all,
    time,
};
use front_nbd::{Address, Listeners, NbdLimits};
use sim::{
    Count, assert_occurred,
    content::{self, SECTOR_BYTES},
    nbd_client::{
        self, DISCONNECT, FLUSH, FUA, IO, NbdClient, PERMISSION, READ, TRIM, WRITE, WRITE_ZEROES,
    },
    raw::{self, RawSession},
    slow_disk::{SECTORS, SlowDisk},
    target_machine::PORT,
    two_fronts::{IQN, LANES, TRANSFER_MAX_BYTES, TwoFronts},
};

use crate::MS;

const NBD_PORT: u16 = 10809;
const SECTOR: u64 = SECTOR_BYTES as u64;
const LIMITS: NbdLimits = NbdLimits {
    connections_max: 6,
    handshakes_max: 3,
    handshakes_per_peer_max: 3,
    requests_max: 16,
    handshake_time: Duration::from_secs(10),
    peer_time: Duration::from_secs(30),
    idle_time: Duration::from_secs(60),
};

/// A machine with both servers.
struct Bench {
    machine: TwoFronts,
    server: Cell<Option<front_nbd::NbdServer>>,
    random: Cell<Option<Random>>,
    last: Cell<u64>,
}

impl Bench {
    fn each(seed_count: u64, scenario: impl AsyncFn(&Rc<Bench>)) {
        seeds(seed_count, |seed| {
            let mut config = WorldConfig::default();
            config.net = NetConfig {
                split_probability: 0.4,
                ..config.net
            };
            let world = World::with_config(seed, config);
            let client = world.host("client");
            let host = world.host_with_lanes("two-fronts", LANES);
            let disk = SlowDisk::new(world.random());
            let random = Cell::new(Some(world.random()));
            world.block_on(&client, async {
                let machine = TwoFronts::start(&host, disk).await;
                let (units, address) = (machine.units.clone(), host.addr(NBD_PORT));
                let server = host.spawn(async move {
                    let config = front_nbd::NbdConfig {
                        volume: "disk".into(),
                        relative_port: 3,
                        read_only: false,
                        limits: LIMITS,
                        tls: None,
                    };
                    let place = Listeners::take(&Address::Tcp(address)).await;
                    let place = place.expect("nobody else is there");
                    front_nbd::NbdServer::start(config, place, &units).await
                });
                let bench = Bench {
                    machine,
                    server: Cell::new(Some(server.await.expect("it starts"))),
                    random,
                    last: Cell::new(0),
                };
                scenario(&Rc::new(bench)).await;
            });
        });
    }

    fn below(&self, n: u64) -> u64 {
        let mut random = self.random.take().expect("it is put back");
        let drawn = random.below(n);
        self.random.set(Some(random));
        drawn
    }

    fn version(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }

    fn disk(&self) -> &SlowDisk {
        &self.machine.disk
    }

    async fn client(&self) -> Rc<NbdClient> {
        let is_structured = self.below(2) == 0;
        let addr = self.machine.host.addr(NBD_PORT);
        let client = NbdClient::start(addr, is_structured).await;
        client.expect("it is let in")
    }

    /// A raw connection that has completed the handshake.
    async fn by_hand(&self) -> TcpStream {
        let addr = self.machine.host.addr(NBD_PORT);
        let (stream, mut reader) = nbd_client::connect(addr).await.expect("it is let in");
        let negotiated = nbd_client::negotiate(&stream, &mut reader, false).await;
        negotiated.expect("it is let in");
        stream
    }

    /// Waits until all connection places are free again, by taking them.
    async fn until_places_are_free(&self) {
        loop {
            let mut clients = Vec::new();
            for _ in 0..LIMITS.connections_max {
                let addr = self.machine.host.addr(NBD_PORT);
                clients.push(NbdClient::start(addr, true).await);
            }
            let all = clients.iter().all(Result::is_ok);
            for client in clients.into_iter().flatten() {
                client.ask((DISCONNECT, 0), 0, 0).await;
            }
            if all {
                return;
            }
            time::sleep(100 * MS).await;
        }
    }
}

/// Writes, zeroes, trims and reads its own sectors, one request at a time.
async fn work(bench: Rc<Bench>, client: Rc<NbdClient>, own: Range<u64>, requests: usize) {
    let mut model = vec![content::ZEROES; (own.end - own.start) as usize];
    for _ in 0..requests {
        let first = bench.below(own.end - own.start);
        let count = 1 + bench.below((own.end - own.start - first).min(24));
        let (at, len) = ((own.start + first) * SECTOR, (count * SECTOR) as u32);
        let sectors = own.start + first..own.start + first + count;
        let place = &mut model[first as usize..(first + count) as usize];
        let fua = if bench.below(4) == 0 { FUA } else { 0 };
        match bench.below(8) {
            0..=2 => {
                let version = bench.version();
                let data = content::bytes(version, sectors);
                assert_eq!(client.write(at, &data, fua).await, Some(Ok(vec![])));
                place.fill(version);
            }
            kind @ 3..=4 => {
                let kind = if kind == 3 { TRIM } else { WRITE_ZEROES };
                let zeroed = client.ask((kind, fua), at, len).await;
                assert_eq!(zeroed, Some(Ok(vec![])));
                place.fill(content::ZEROES);
            }
            5 => assert_eq!(client.ask((FLUSH, 0), 0, 0).await, Some(Ok(vec![]))),
            _ => {
                let data = client.ask((READ, 0), at, len).await;
                let data = data.expect("it lives").expect("it can be read");
                assert_eq!(content::versions(sectors.start, &data), place);
            }
        }
    }
}

/// Several workers on each of several connections.
fn crowd(
    bench: &Rc<Bench>,
    clients: &[Rc<NbdClient>],
    requests: usize,
) -> Vec<impl Future<Output = ()> + use<>> {
    let workers = 4 * clients.len() as u64;
    let share = SECTORS / workers;
    let workers = (0..workers).map(|n| {
        let client = clients[(n / 4) as usize].clone();
        let own = n * share..(n + 1) * share;
        spawn(work(bench.clone(), client, own, requests))
    });
    workers.collect()
}

#[test]
fn what_was_written_is_read_over_every_connection() {
    let side_by_side = Count::new();
    Bench::each(40, async |bench| {
        let clients = [bench.client().await, bench.client().await];
        join_all(crowd(bench, &clients, 25)).await;
        let writes = bench.disk().writes();
        let beside = writes
            .windows(2)
            .filter(|two| two[0].ended.is_none_or(|ended| ended > two[1].began));
        side_by_side.add(beside.count());
        let version = bench.version();
        let data = content::bytes(version, 0..8);
        assert_eq!(clients[0].write(0, &data, 0).await, Some(Ok(vec![])));
        let read = clients[1].ask((READ, 0), 0, data.len() as u32).await;
        assert_eq!(read, Some(Ok(data)));
        for client in clients {
            assert_eq!(client.ask((DISCONNECT, 0), 0, 0).await, None);
        }
        bench.until_places_are_free().await;
    });
    assert_occurred([("writes side by side", side_by_side.get())]);
}

#[test]
fn what_fails_on_the_disk_is_an_error_of_its_request_alone() {
    let failed = Count::new();
    Bench::each(10, async |bench| {
        bench.disk().set_fail_chance(0.3);
        let client = bench.client().await;
        let data = content::bytes(bench.version(), 0..8);
        for _ in 0..20 {
            match client.write(0, &data, 0).await {
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    assert_eq!(error, IO);
                    failed.add(1);
                }
                None => panic!("the connection ended"),
            }
        }
        assert_eq!(
            client.write(SECTORS * SECTOR, &data, 0).await,
            Some(Err(28))
        );
        assert_eq!(
            client
                .ask((READ, 0), 0, TRANSFER_MAX_BYTES)
                .await
                .map(|r| r.is_ok()),
            Some(true)
        );
    });
    assert_occurred([("writes that failed", failed.get())]);
}

#[test]
fn a_fence_by_an_initiator_holds_for_nbd_clients() {
    let overtaken = Count::new();
    Bench::each(20, async |bench| {
        let portal = bench.machine.host.addr(PORT);
        let session = RawSession::login_at(portal, IQN, "fencer").await;
        session.execute(&[0; 6], &[], 0).await.expect("it lives");
        let reserve = async |action, keys: (u8, u8)| {
            let (cdb, list) = raw::reserve_out(action, 3, keys.0, keys.1);
            let answer = session.execute(&cdb, &list, 0).await;
            assert_eq!(answer.expect("it lives").status, Some(0));
        };
        reserve(0, (0, 1)).await;
        bench.disk().set_pause_max(20 * MS);
        let client = bench.client().await;
        let data = content::bytes(bench.version(), 0..8);
        let writes: Vec<u64> = (0..6)
            .map(|_| client.submit((WRITE, 0), (0, data.len() as u32), &data))
            .collect();
        while bench.disk().writing(|_| true) == 0 {
            time::sleep(MS / 10).await;
        }
        reserve(1, (1, 0)).await;
        overtaken.add(bench.disk().writing(|_| true));
        let reset = session.task_management(raw::LOGICAL_UNIT_RESET).await;
        assert_eq!(reset, Ok(0));
        assert_eq!(
            bench.disk().writing(|_| true),
            0,
            "what was accepted is over"
        );
        for write in writes {
            let answer = client.answer(write).await.expect("it lives");
            assert!(matches!(answer, Ok(_) | Err(PERMISSION)), "{answer:?}");
        }
        let refused = Some(Err(PERMISSION));
        assert_eq!(client.write(0, &data, 0).await, refused);
        assert_eq!(client.ask((READ, 0), 0, 512).await, refused);
        assert_eq!(client.ask((FLUSH, 0), 0, 0).await, refused);
        reserve(2, (1, 0)).await;
        assert_eq!(client.write(0, &data, 0).await, Some(Ok(vec![])));
    });
    assert_occurred([("writes at work", overtaken.get())]);
}

/// They come from its own machine, and there are many more of them than there is room for.
#[test]
fn who_merely_connects_keeps_no_slow_client_out() {
    Bench::each(20, async |bench| {
        let addr = bench.machine.host.addr(NBD_PORT);
        let (stream, mut reader) = nbd_client::connect(addr).await.expect("it is let in");
        let sent = nbd_client::send(&stream, &nbd_client::FLAGS).await;
        sent.expect("it is let in");
        time::sleep(100 * MS).await;
        let mut strangers = Vec::new();
        for _ in 0..10 * LIMITS.handshakes_max {
            strangers.push(TcpStream::connect(addr).await);
            time::sleep(MS * bench.below(20) as u32).await;
        }
        let chosen = nbd_client::choose(&stream, &mut reader, true).await;
        chosen.expect("it is let in");
    });
}

#[test]
fn who_leaves_or_talks_nonsense_troubles_nobody() {
    let [in_header, in_data, in_reads, noise, senseless] = [const { Count::new() }; 5];
    let while_reading = Count::new();
    Bench::each(30, async |bench| {
        bench.disk().set_pause_max(2 * MS);
        let clients = vec![bench.client().await];
        let workers = crowd(bench, &clients, 10);
        for _ in 0..12 {
            let stream = bench.by_hand().await;
            let write = nbd_client::request(WRITE, 0, 7, 0, 4096);
            let sense = nbd_client::request(TRIM, 0, 8, 0, 0);
            let drawn = bench.below(5) as usize;
            [&in_header, &in_data, &in_reads, &noise, &senseless][drawn].add(1);
            let bytes = match drawn {
                // In the middle of a header, and of the data of a write.
                0 => write[..11].to_vec(),
                1 => [&write[..], &[0; 1000]].concat(),
                // While the server is working on them.
                2 => nbd_client::request(READ, 0, 7, 0, TRANSFER_MAX_BYTES).repeat(40),
                3 => vec![bench.below(256) as u8; 500],
                _ => [sense.repeat(100), vec![0xff; 28]].concat(),
            };
            let _ = nbd_client::send(&stream, &bytes).await;
            time::sleep(MS * bench.below(20) as u32).await;
            while_reading.when(drawn == 2 && bench.disk().reading() > 0);
            drop(stream);
            time::sleep(200 * MS).await;
        }
        join_all(workers).await;
        clients[0].end();
        bench.until_places_are_free().await;
    });
    assert_occurred([
        ("left in a header", in_header.get()),
        ("left in the data of a write", in_data.get()),
        ("left with reads sent", in_reads.get()),
        ("left while the disk was reading", while_reading.get()),
        ("sent noise", noise.get()),
        ("sent senseless requests", senseless.get()),
    ]);
}

#[test]
fn who_takes_or_sends_nothing_is_sent_away_and_the_silent_are_not() {
    Bench::each(6, async |bench| {
        let quiet = bench.client().await;
        let addr = bench.machine.host.addr(NBD_PORT);
        // Silence, half a handshake, half a request, half of its data, and many replies that are never read.
        let silent = nbd_client::connect(addr).await.expect("it is let in");
        let halves = [
            [&[0, 0, 0, 3], &nbd_client::option(7, &[0; 6])[..20]].concat(),
            nbd_client::request(READ, 0, 1, 0, 512)[..20].to_vec(),
            nbd_client::request(WRITE, 0, 1, 0, 4096),
            nbd_client::request(READ, 0, 1, 0, TRANSFER_MAX_BYTES).repeat(400),
        ];
        let mut streams = vec![silent.0];
        for (index, half) in halves.iter().enumerate() {
            let stream = match index {
                0 => nbd_client::connect(addr).await.expect("it is let in").0,
                _ => bench.by_hand().await,
            };
            let (theirs, half) = (stream.clone(), half.clone());
            spawn(async move { nbd_client::send(&theirs, &half).await });
            streams.push(stream);
        }
        // Two of them are still in their handshake.
        let others = LIMITS.connections_max - (streams.len() - 2) - 1;
        for _ in 0..others {
            streams.push(bench.by_hand().await);
        }
        let refused = NbdClient::start(addr, true).await;
        assert!(refused.is_err(), "the client limit is reached");
        // Other clients still get memory.
        join_all(crowd(bench, std::slice::from_ref(&quiet), 10)).await;
        time::sleep(3 * LIMITS.peer_time).await;
        for _ in 0..streams.len() {
            bench.client().await.end();
        }
        drop(streams);
        assert_eq!(
            quiet.ask((READ, 0), 0, 512).await.map(|r| r.is_ok()),
            Some(true)
        );
    });
}

/// Takes all that comes, `bytes` at a time with a second between; returns how much it was.
async fn sip(stream: TcpStream, bytes: usize) -> usize {
    let mut all = 0;
    loop {
        let (result, _) = stream.receive(Buf::new(bytes), 0).await;
        match result {
            Ok(0) | Err(_) => return all,
            Ok(len) => all += len,
        }
        time::sleep(Duration::from_secs(1)).await;
    }
}

/// Takes 1 KiB a second for some `seconds`, then all that comes; returns how much it was before the connection ended, or
/// was all of the long replies.
async fn sip_then_gulp(stream: TcpStream, seconds: u64) -> usize {
    let mut taken = 0;
    for second in 0.. {
        let is_slow = second < seconds;
        let bytes = if is_slow { 1 << 10 } else { 64 << 10 };
        let (result, _) = stream.receive(Buf::new(bytes), 0).await;
        taken += match result {
            Ok(0) | Err(_) => break,
            Ok(len) => len,
        };
        if taken == LONG_REPLIES_BYTES {
            break;
        }
        if is_slow {
            time::sleep(Duration::from_secs(1)).await;
        }
    }
    taken
}

/// Reads of the longest length whose replies take up a client's share of memory when its socket is full.
const LONG_READS: usize = 12;
const LONG_REPLIES_BYTES: usize = LONG_READS * (16 + TRANSFER_MAX_BYTES as usize);

async fn ask_for_long_reads(stream: &TcpStream) {
    let reads = nbd_client::request(READ, 0, 1, 0, TRANSFER_MAX_BYTES).repeat(LONG_READS);
    let asked = nbd_client::send(stream, &reads).await;
    asked.expect("the server takes them");
}

#[test]
fn who_takes_replies_slowly_leaves_when_others_need_its_memory() {
    Bench::each(4, async |bench| {
        let addr = bench.machine.host.addr(NBD_PORT);
        let victim = bench.client().await;
        let mut fair = None;
        // Four clients on the victim's lane take all its memory. One of them is slow, but fast enough.
        for n in 0..4 {
            // It takes the place on the other lane.
            drop(nbd_client::connect(addr).await.expect("it is let in"));
            let stream = bench.by_hand().await;
            ask_for_long_reads(&stream).await;
            let sips = spawn(sip(stream, if n == 0 { 48 << 10 } else { 1 << 10 }));
            fair = fair.or(Some(sips));
        }
        let until = time::now() + Duration::from_secs(15);
        while time::now() < until {
            let reads: Vec<u64> = (0..4)
                .map(|_| victim.submit((READ, 0), (0, TRANSFER_MAX_BYTES), &[]))
                .collect();
            for read in reads {
                let read = victim.answer(read).await.expect("it lives");
                assert!(read.is_ok(), "{read:?}");
            }
            time::sleep(100 * MS).await;
        }

        // The places of those who left are free.
        let newcomers = [bench.client().await, bench.client().await];
        newcomers.iter().for_each(|client| client.end());
        let mut fair = fair.expect("the first of them");
        let taken = time::timeout(Duration::from_secs(60), &mut fair).await;
        assert!(taken.is_none(), "it was sent away after {taken:?} bytes");
    });
}

#[test]
fn who_takes_replies_slowly_stays_when_nobody_needs_its_memory() {
    Bench::each(2, async |bench| {
        let stream = bench.by_hand().await;
        ask_for_long_reads(&stream).await;
        let taken = sip_then_gulp(stream, 5 * LIMITS.peer_time.as_secs()).await;
        assert_eq!(taken, LONG_REPLIES_BYTES);
    });
}

#[test]
fn who_only_waits_for_memory_is_not_blamed_for_its_shortage() {
    Bench::each(4, async |bench| {
        let addr = bench.machine.host.addr(NBD_PORT);
        let victim = bench.client().await;
        let one_more = async || {
            // It takes the place on the other lane.
            drop(nbd_client::connect(addr).await.expect("it is let in"));
            bench.by_hand().await
        };
        // Four clients fill the lane's memory with writes that take forever.
        bench.disk().set_pause_max(Duration::from_secs(1_000_000));
        let mut writers = Vec::new();
        for n in 0..4 {
            let stream = one_more().await;
            let mut writes = nbd_client::request(WRITE, 0, n, 0, TRANSFER_MAX_BYTES);
            writes.extend([0; TRANSFER_MAX_BYTES as usize]);
            let sent = nbd_client::send(&stream, &writes.repeat(2)).await;
            sent.expect("the server takes them");
            writers.push(stream);
        }
        while bench.disk().writing(|_| true) < 8 {
            time::sleep(100 * MS).await;
        }
        bench.disk().set_pause_max(Duration::ZERO);
        // What is left is each client's reserve. This one asks for more, and takes slowly what it gets.
        let stream = one_more().await;
        ask_for_long_reads(&stream).await;
        let taken = spawn(sip_then_gulp(stream, 20));
        for _ in 0..200 {
            let read = victim.ask((READ, 0), 0, TRANSFER_MAX_BYTES).await;
            assert!(read.expect("it lives").is_ok());
            time::sleep(100 * MS).await;
        }
        assert_eq!(taken.await, LONG_REPLIES_BYTES);
    });
}

#[test]
fn who_disconnects_may_take_its_last_replies_slowly() {
    Bench::each(2, async |bench| {
        let stream = bench.by_hand().await;
        ask_for_long_reads(&stream).await;
        let bye = nbd_client::request(DISCONNECT, 0, 2, 0, 0);
        let sent = nbd_client::send(&stream, &bye).await;
        sent.expect("the server takes it");
        let taken = sip(stream, 4 << 10).await;
        assert_eq!(taken, LONG_REPLIES_BYTES);
    });
}

#[test]
fn a_server_that_stops_waits_a_limited_time_for_slow_clients() {
    Bench::each(2, async |bench| {
        let stream = bench.by_hand().await;
        ask_for_long_reads(&stream).await;
        let sips = spawn(sip(stream, 1 << 10));
        time::sleep(Duration::from_secs(1)).await;
        let server = bench.server.take().expect("it runs");
        let stopped = time::timeout(2 * LIMITS.peer_time, server.stop()).await;
        assert!(
            stopped.is_some(),
            "it waits for a client that takes 1 KiB a second"
        );
        drop(sips);
    });
}

#[test]
fn who_stays_in_the_handshake_makes_room_for_clients() {
    let [let_in, sent_away] = [const { Count::new() }; 2];
    Bench::each(10, async |bench| {
        let addr = bench.machine.host.addr(NBD_PORT);
        let mut clients = vec![bench.client().await];
        let mut strangers = Vec::new();
        for n in 1..LIMITS.connections_max {
            for _ in 0..2 * LIMITS.handshakes_max {
                // Some are dropped before their greeting.
                strangers.extend(nbd_client::connect(addr).await);
            }
            let client = NbdClient::start(addr, n % 2 == 0).await;
            clients.push(client.expect("a stranger makes room"));
            for client in &clients {
                assert_eq!(client.ask((FLUSH, 0), 0, 0).await, Some(Ok(vec![])));
            }
        }
        let_in.add(strangers.len());
        for (stream, _) in strangers {
            let end = time::timeout(MS, stream.receive(Buf::new(1), 0)).await;
            sent_away.when(end.is_some_and(|(result, _)| !matches!(result, Ok(1))));
        }
    });
    assert_occurred([
        ("strangers let in", let_in.get()),
        ("strangers sent away", sent_away.get()),
    ]);
}

#[test]
fn a_server_that_stops_answers_what_it_has_accepted() {
    let [answered, not_begun] = [const { Count::new() }; 2];
    Bench::each(20, async |bench| {
        bench.disk().set_pause_max(5 * MS);
        let clients = [bench.client().await, bench.client().await];
        let mut writes = Vec::new();
        for n in 0..20u64 {
            let client = clients[n as usize % 2].clone();
            let version = bench.version();
            let data = content::bytes(version, 8 * n..8 * n + 8);
            let cookie = client.submit((WRITE, 0), (8 * n * SECTOR, data.len() as u32), &data);
            writes.push((n, version, client, cookie));
        }
        // Some stops come while the writes are on their way.
        let pause = if bench.below(2) == 0 { MS / 100 } else { MS };
        time::sleep(pause * bench.below(60) as u32).await;
        let server = bench.server.take().expect("it runs");
        bench
            .machine
            .host
            .spawn(async move { server.stop().await })
            .await;
        assert_eq!(bench.disk().writing(|_| true), 0, "all is over");
        for (n, version, client, cookie) in writes {
            let landed = bench.disk().history(8 * n + 7).contains(&version);
            match client.answer(cookie).await {
                Some(Ok(_)) => {
                    assert!(landed);
                    answered.add(1);
                }
                Some(Err(error)) => panic!("error {error}"),
                None => {
                    assert!(!landed, "what was done was answered");
                    not_begun.add(1);
                }
            }
        }
        let addr = bench.machine.host.addr(NBD_PORT);
        assert!(NbdClient::start(addr, true).await.is_err());
    });
    assert_occurred([
        ("writes answered", answered.get()),
        ("writes that were not accepted", not_begun.get()),
    ]);
}
