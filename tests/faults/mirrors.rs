//! A mirror whose two copies are served by processes of their own, while they are killed and stopped: whoever uses the mirror sees no error as long as one copy lives, nothing that was acknowledged is lost, a copy that
//! returns gets what it has missed and no more, and in the end both are equal.

mod sets;

use engine::{Buf, Duration, task, time};
use harness::directory::Directory;
use harness::initiator::{on_lane, on_port, opened};
use harness::noise;
use harness::run::Ran;
use harness::sanstone::{Sanstone, call, target_table};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::path::PathBuf;
use std::rc::Rc;
use volume::{Durability, IscsiDisk, Result, Volume};

const DATA_BYTES: usize = 64 << 20;
const SLOT_BYTES: usize = 16 << 10;
const SLOTS: usize = 256;
/// From one slot to the next: they lie in regions of their own, all over the disk.
const STRIDE_BYTES: usize = DATA_BYTES / SLOTS;
const WRITERS: usize = 8;
/// How long something may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A `sanstone serve` that can be killed and started again.
struct Node {
    directory: Directory,
    port: u16,
    volumes: String,
    volume: &'static str,
    server: Option<Sanstone>,
}

impl Node {
    fn new(volume: &'static str, volumes: String) -> Node {
        Node {
            directory: Directory::new(),
            port: harness::free_port(),
            volumes,
            volume,
            server: None,
        }
    }

    /// One that serves a copy of a mirror.
    fn storage(cache: &str) -> Node {
        Node::new("copy", Node::copy_of((DATA_BYTES >> 20) + 1, cache))
    }

    fn copy_of(mib: usize, cache: &str) -> String {
        let file = format!("path = \"copy\", size = \"{mib}MiB\", cache = \"{cache}\"");
        format!("[volume.copy]\nfile = {{ {file} }}\n")
    }

    /// The copy that it serves becomes so long, while it is used or while it is not.
    fn grows(&mut self, mib: usize) {
        self.volumes = Node::copy_of(mib, "direct-sync");
        let file = self.configuration();
        if self.server.is_some() {
            call(&["apply", "-c", file.to_str().expect("plain text")]).success();
            self.server().daemon().log_with("a disk has grown");
        } else {
            let copy = File::options()
                .write(true)
                .open(self.directory.join("copy"));
            let set = copy.and_then(|copy| copy.set_len((mib as u64) << 20));
            set.expect("room");
        }
    }

    /// One that serves a register.
    fn register() -> Node {
        let file = "path = \"register\", size = \"1MiB\", cache = \"direct-sync\"";
        Node::new(
            "register",
            format!("[volume.register]\nfile = {{ {file} }}\n"),
        )
    }

    /// What it serves, as a volume of another one.
    fn remote(&self) -> String {
        let url = format!(
            "iscsi://127.0.0.1:{}/{}/0",
            self.port,
            harness::sanstone::IQN
        );
        let times =
            "connect_timeout = \"2s\", request_timeout = \"2s\", reconnect_timeout = \"2s\"";
        format!("{{ iscsi = {{ url = \"{url}\", {times} }} }}")
    }

    /// One that has a mirror of what others serve.
    fn owner(storages: [&Node; 2]) -> Node {
        Node::owner_with(storages, "")
    }

    /// The same, with further settings of the mirror.
    fn owner_with(storages: [&Node; 2], settings: &str) -> Node {
        Node::new("db", Node::mirror_of(storages, settings))
    }

    /// The same, whose second copy is a `kind` of two disks, stripe or concat.
    fn owner_with_set(storage: &Node, kind: &str, set: [&Node; 2]) -> Node {
        let of = format!("of = [{}, \"set\"]", storage.remote());
        let set = set.map(Node::remote).join(", ");
        let mirror = format!("copy_timeout = \"2s\", request_timeout = \"100s\", {of}");
        let volumes =
            format!("[volume.set]\n{kind}.of = [{set}]\n[volume.db]\nmirror = {{ {mirror} }}\n");
        Node::new("db", volumes)
    }

    fn mirror_of(storages: [&Node; 2], settings: &str) -> String {
        let of = storages.map(Node::remote).join(", ");
        let mirror = format!("copy_timeout = \"2s\", request_timeout = \"100s\", of = [{of}]");
        format!("[volume.db]\nmirror = {{ {mirror}{settings} }}\n")
    }

    /// Its mirror is one of these from now on, while it serves.
    fn changes_to(&mut self, storages: [&Node; 2]) {
        self.volumes = Node::mirror_of(storages, "");
        let file = self.configuration();
        call(&["apply", "-c", file.to_str().expect("plain text")]).success();
    }

    /// The disks of its set have this instead of `was` from now on, while it serves.
    fn changes_set(&mut self, was: &str, is: &str) {
        let (set, mirror) = self.volumes.split_once("[volume.db]").expect("two volumes");
        self.volumes = format!("{}[volume.db]{mirror}", set.replace(was, is));
        let file = self.configuration();
        call(&["apply", "-c", file.to_str().expect("plain text")]).success();
    }

    fn configuration(&self) -> PathBuf {
        let text = format!(
            "{}{}",
            self.volumes,
            target_table(self.port, &[self.volume])
        );
        self.directory.write("sanstone.toml", text)
    }

    fn start(&mut self) {
        let directory = self.directory.path();
        let server = Sanstone::serve_on(self.port, directory, &self.volumes, &[self.volume]);
        self.server = Some(server.answering(&self.directory.join("sanstone.state")));
    }

    /// Creates `volumes` of what `nodes` serve from now on, and serves its own.
    fn begins_over<const N: usize>(&mut self, nodes: [&mut Node; N], volumes: &[&str]) {
        nodes.into_iter().for_each(Node::start);
        for volume in volumes {
            self.volume_called(volume, "create").success();
        }
        self.start();
    }

    /// Creates its mirror of what `storages` serve from now on, and serves it.
    fn begins_with(&mut self, storages: [&mut Node; 2]) {
        self.begins_over(storages, &[self.volume]);
    }

    /// Serves, from now on, a mirror of what `storage` serves and of a `kind` of two others, stripe or concat.
    fn begins_with_set(storage: &mut Node, kind: &str, set: [&mut Node; 2]) -> Node {
        let [one, other] = set;
        let mut owner = Node::owner_with_set(storage, kind, [one, other]);
        owner.begins_over([storage, one, other], &["set", "db"]);
        owner
    }

    fn server(&mut self) -> &mut Sanstone {
        self.server.as_mut().expect("it runs")
    }

    fn ends_by(&mut self, signal: &str) {
        if let Some(mut server) = self.server.take() {
            server.daemon().signal(signal);
            server.daemon().wait(LIMIT).expect("it ends");
        }
    }

    fn kill(&mut self) {
        self.ends_by("KILL");
    }

    /// Tries to start it, which it refuses.
    fn serves_not(&self) -> Ran {
        let file = self.configuration();
        let refused = call(&["serve", "-c", file.to_str().expect("plain text")]);
        assert_ne!(refused.code(), Some(0), "{refused}");
        refused
    }

    /// What it tells of its volume.
    fn shown(&self) -> Value {
        let state = self.directory.join("sanstone.state");
        let state = state.to_str().expect("plain text");
        let shown = call(&["show", "--state", state, "--json", "-"]).success();
        let shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
        shown["volumes"][self.volume]["tree"].clone()
    }

    fn volume(&self, command: &str) -> Ran {
        self.volume_called(self.volume, command)
    }

    fn volume_called(&self, volume: &str, command: &str) -> Ran {
        let file = self.configuration();
        let file = file.to_str().expect("plain text");
        call(&["volume", command, "-c", file, volume])
    }

    /// Waits until `sanstone volume status` ends with this exit code, and says `part`.
    async fn is(&self, code: i32, part: &str) {
        let deadline = time::now() + LIMIT;
        loop {
            let ran = self.volume("status");
            if ran.code() == Some(code) && (ran.stdout.contains(part) || ran.stderr.contains(part))
            {
                return;
            }
            assert!(time::now() < deadline, "no {code} with {part}: {ran}");
            time::sleep(Duration::from_millis(300)).await;
        }
    }
}

/// Writers that keep a ledger of what was acknowledged, each in slots of its own.
struct Load {
    disk: Rc<IscsiDisk>,
    source: Vec<u8>,
    /// The last write of each slot that was acknowledged.
    ledger: RefCell<Vec<u64>>,
    is_over: Cell<bool>,
}

impl Load {
    fn new(disk: Rc<IscsiDisk>) -> Rc<Load> {
        Rc::new(Load {
            disk,
            source: noise(5, SLOT_BYTES + 4096),
            ledger: RefCell::new(vec![0; SLOTS]),
            is_over: Cell::new(false),
        })
    }

    fn contents(&self, slot: usize, write: u64) -> Vec<u8> {
        if write == 0 {
            return vec![0; SLOT_BYTES];
        }
        let begin = (slot * 7 + write as usize * 13) % 4096;
        self.source[begin..begin + SLOT_BYTES].to_vec()
    }

    async fn write(&self, slot: usize) -> Result<()> {
        let write = self.ledger.borrow()[slot] + 1;
        let data = Buf::copy_of(&self.contents(slot, write)).into();
        let at = (slot * STRIDE_BYTES) as u64;
        self.disk.write(at, data, Durability::Fua).await?;
        self.ledger.borrow_mut()[slot] = write;
        Ok(())
    }

    async fn check(&self, slot: usize) -> Result<()> {
        let expected = self.ledger.borrow()[slot];
        let at = (slot * STRIDE_BYTES) as u64;
        let read = self.disk.read(at, SLOT_BYTES).await?.to_vec();
        assert!(
            read == self.contents(slot, expected),
            "slot {slot} has not write {expected}"
        );
        Ok(())
    }

    async fn writes_all(&self) {
        for slot in 0..SLOTS {
            self.write(slot).await.expect("a copy is there");
        }
    }

    /// Reads from either copy, where both are there.
    async fn checks_all(&self) {
        for slot in (0..SLOTS).chain(0..SLOTS) {
            self.check(slot).await.expect("a copy is there");
        }
    }

    /// Until it is over.
    async fn work(self: Rc<Self>, writer: usize) -> Result<()> {
        for round in 0.. {
            if self.is_over.get() {
                break;
            }
            let slot = writer + (round * 17 % (SLOTS / WRITERS)) * WRITERS;
            self.write(slot).await?;
            self.check(writer + (round * 5 % (SLOTS / WRITERS)) * WRITERS)
                .await?;
        }
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        self.ledger.borrow().iter().sum()
    }

    /// Waits until this many more writes were acknowledged.
    async fn goes_on(&self, more: u64) {
        let wanted = self.acknowledged() + more;
        let deadline = time::now() + LIMIT;
        while self.acknowledged() < wanted {
            assert!(
                time::now() < deadline,
                "{} of {wanted}",
                self.acknowledged()
            );
            time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// What is killed and stopped while `load` runs.
async fn troubles(load: &Load, [a, b]: [&mut Node; 2], owner: &mut Node) {
    a.kill();
    load.goes_on(200).await;
    owner.is(1, "out").await;
    a.start();
    owner.is(0, "in sync").await;
    b.server().daemon().stop();
    load.goes_on(200).await;
    owner.is(1, "out").await;
    b.server().daemon().signal("CONT");
    owner.is(0, "in sync").await;
    // Both are away: requests wait.
    a.kill();
    b.kill();
    time::sleep(Duration::from_secs(1)).await;
    b.start();
    a.start();
    load.goes_on(200).await;
    owner.is(0, "in sync").await;
    owner.kill();
    owner.start();
    load.goes_on(200).await;
    owner.is(0, "in sync").await;
}

/// A storage is gone for good, and a blank one takes its place while the mirror is used.
async fn another_storage(load: &Load, [a, b, c]: [&mut Node; 3], owner: &mut Node) {
    b.kill();
    load.goes_on(200).await;
    owner.is(1, "out").await;
    c.start();
    owner.changes_to([a, c]);
    load.goes_on(200).await;
    owner.is(0, "in sync").await;
    owner.volume("compare").success();
    // The one that was replaced is back, and takes its place again, and once more.
    b.start();
    for other in [&*b, c] {
        owner.changes_to([a, other]);
        load.goes_on(200).await;
        owner.is(0, "in sync").await;
        owner.volume("compare").success();
    }
    // It is a copy as any other now.
    a.kill();
    load.goes_on(200).await;
    owner.is(1, "out").await;
    a.start();
    owner.is(0, "in sync").await;
}

/// A copy that was away while little was written costs little.
async fn a_difference(load: &Load, a: &mut Node, owner: &Node) {
    // What the first fill has marked is cleared after a while.
    let deadline = time::now() + LIMIT;
    while owner.shown()["mirror"]["marked_bytes"] != 0 {
        assert!(time::now() < deadline, "{}", owner.shown());
        time::sleep(Duration::from_millis(500)).await;
    }
    a.kill();
    for slot in 0..8 {
        load.write(slot).await.expect("the other copy lives");
    }
    owner.is(1, "out").await;
    a.start();
    owner.is(0, "in sync").await;
    let written = a.shown()["requests"]["write"]["bytes"].as_u64();
    let written = written.expect("it was filled");
    assert!(
        (8 * SLOT_BYTES as u64..4 << 20).contains(&written),
        "{written} bytes were written for 8 slots of {SLOT_BYTES}"
    );
}

#[test]
fn a_mirror_outlives_its_copies_and_loses_nothing() {
    let (mut a, mut b) = (Node::storage("direct-sync"), Node::storage("write-through"));
    let mut c = Node::storage("direct-sync");
    let mut owner = Node::owner([&a, &b]);
    owner.begins_with([&mut a, &mut b]);
    on_lane(async {
        let mut config = on_port(owner.port);
        config.request_timeout = Duration::from_secs(120);
        config.reconnect_timeout = Duration::from_secs(120);
        let load = Load::new(opened(config).await);
        owner.is(0, "in sync").await;
        a_difference(&load, &mut a, &owner).await;
        let writers = (0..WRITERS).map(|writer| task::spawn(load.clone().work(writer)));
        let writers: Vec<_> = writers.collect();
        troubles(&load, [&mut a, &mut b], &mut owner).await;
        another_storage(&load, [&mut a, &mut b, &mut c], &mut owner).await;
        load.is_over.set(true);
        for ended in task::join_all(writers).await {
            ended.expect("a copy lived all the time");
        }
        load.checks_all().await;
        load.disk.close().await;
    });
    owner.ends_by("TERM");
    let copies = [&mut a, &mut c].map(|storage| {
        storage.ends_by("TERM");
        let copy = std::fs::read(storage.directory.join("copy")).expect("a copy");
        copy[..DATA_BYTES].to_vec()
    });
    assert!(copies[0] == copies[1], "the copies differ");
}

#[test]
fn copies_that_their_targets_make_longer_are_the_same_mirror_at_its_next_start() {
    let (mut a, mut b) = (Node::storage("direct-sync"), Node::storage("direct-sync"));
    let mut owner = Node::owner([&a, &b]);
    owner.begins_with([&mut a, &mut b]);
    on_lane(async {
        owner.is(0, "in sync").await;
        let load = Load::new(disk_of(&owner).await);
        load.write(3).await.expect("both copies are there");
        // One while it is used, and the other while it is away.
        a.grows(100);
        load.write(SLOTS - 1).await.expect("both copies are there");
        b.kill();
        load.write(4).await.expect("the other copy lives");
        owner.is(1, "out").await;
        b.grows(90);
        b.start();
        owner.is(0, "in sync").await;
        load.disk.close().await;
        owner.kill();
        owner.start();
        owner.is(0, "in sync").await;
        let again = Load {
            disk: disk_of(&owner).await,
            source: load.source.clone(),
            ledger: load.ledger.clone(),
            is_over: Cell::new(false),
        };
        for slot in [3, 4, SLOTS - 1] {
            again.check(slot).await.expect("a read");
        }
        again.disk.close().await;
        owner.volume("compare").success();
    });
}

#[test]
fn a_mirror_whose_copies_have_become_longer_is_given_their_length_while_nobody_uses_it() {
    let (mut a, mut b) = (Node::storage("direct-sync"), Node::storage("direct-sync"));
    let mut owner = Node::owner([&a, &b]);
    owner.begins_with([&mut a, &mut b]);
    on_lane(async {
        let load = Load::new(disk_of(&owner).await);
        load.write(SLOTS - 1).await.expect("both copies are there");
        load.disk.close().await;
        a.grows(100);
        owner.ends_by("TERM");
        let stays = owner.volume("grow").success();
        assert!(stays.stdout.contains("stays as it is"), "{stays}");
        b.grows(90);
        owner.start();
        let refused = owner.volume("grow");
        let stopped = refused.stderr.contains("uses the state directory");
        assert!(stopped && refused.stderr.contains("stop it"), "{refused}");
        owner.is(0, "in sync").await;
        owner.ends_by("TERM");
        let grown = owner.volume("grow").success();
        let (from, to) = (DATA_BYTES, 89 << 20);
        let told = format!("has grown from {from} to {to} bytes");
        assert!(grown.stdout.contains(&told), "{grown}");
        // Whoever serves a copy finds what is kept there at its new place, also without a state directory.
        a.kill();
        std::fs::remove_dir_all(a.directory.join("sanstone.state")).expect("it was there");
        a.start();
        owner.start();
        owner.is(0, "in sync").await;
        let longer = Load {
            disk: disk_of(&owner).await,
            source: load.source.clone(),
            ledger: load.ledger.clone(),
            is_over: Cell::new(false),
        };
        assert_eq!(longer.disk.shape().len_bytes(), to);
        longer.check(SLOTS - 1).await.expect("a read");
        let data = Buf::copy_of(&longer.contents(0, 1));
        let at = to - SLOT_BYTES as u64;
        let written = longer.disk.write(at, data.into(), Durability::Fua).await;
        written.expect("there is room");
        longer.disk.close().await;
        owner.is(0, "in sync").await;
        owner.volume("compare").success();
    });
}

/// The disk that a node serves, for requests that may fail at once.
async fn disk_of(node: &Node) -> Rc<IscsiDisk> {
    let mut config = on_port(node.port);
    config.request_timeout = LIMIT;
    opened(config).await
}

#[test]
fn of_two_hosts_with_a_register_one_has_the_mirror_and_who_takes_it_over_stops_the_other() {
    let (mut a, mut b) = (Node::storage("direct-sync"), Node::storage("direct-sync"));
    let mut register = Node::register();
    let settings = format!(", register = {}", register.remote());
    let hosts = || Node::owner_with([&a, &b], &settings);
    let (mut first, mut second) = (hosts(), hosts());
    for node in [&mut a, &mut b, &mut register] {
        node.start();
    }
    first.volume("create").success();
    first.start();
    on_lane(async {
        first.is(0, "in sync").await;
        let load = Load::new(disk_of(&first).await);
        load.write(3).await.expect("it has the mirror");
        let refused = second.serves_not();
        assert!(refused.stderr.contains("has another owner"), "{refused}");
        assert!(refused.stderr.contains("volume take-over"), "{refused}");
        load.write(3).await.expect("nothing has happened to it");

        // Also while a copy is away: the register says that the other one has all.
        a.kill();
        second.volume("take-over").success();
        a.start();
        load.write(4).await.expect_err("it was taken over");
        for command in ["status", "compare"] {
            let refused = first.volume(command);
            assert_eq!(refused.code(), Some(2), "{refused}");
            let said = format!("{}{}", refused.stdout, refused.stderr);
            assert!(said.contains("taken over"), "{refused}");
            assert!(!said.contains("in sync"), "nobody knows: {refused}");
        }
        second.start();
        let there = Load {
            disk: disk_of(&second).await,
            source: load.source.clone(),
            ledger: load.ledger.clone(),
            is_over: Cell::new(false),
        };
        there.check(3).await.expect("a read");
        there.write(3).await.expect("it has the mirror now");
        first.kill();
        let refused = first.serves_not();
        assert!(refused.stderr.contains("has another owner"), "{refused}");

        // Without a register the mirror goes on as it is, and changes no owner.
        register.kill();
        there.write(5).await.expect("both copies are there");
        register.start();
        a.kill();
        there.write(7).await.expect("the other copy lives");
        second.is(1, "out").await;
        there.disk.close().await;
    });
}

#[test]
fn a_register_disk_that_was_set_back_is_refused_and_overruled_by_force() {
    let (mut a, mut b) = (Node::storage("direct-sync"), Node::storage("direct-sync"));
    let mut register = Node::register();
    let settings = format!(", register = {}", register.remote());
    let mut owner = Node::owner_with([&a, &b], &settings);
    register.start();
    owner.begins_with([&mut a, &mut b]);
    on_lane(async {
        owner.is(0, "in sync").await;
        let file = register.directory.join("register");
        let older = std::fs::read(&file).expect("a register");
        let load = Load::new(disk_of(&owner).await);
        a.kill();
        load.write(3).await.expect("the other copy lives");
        owner.is(1, "out").await;
        a.start();
        owner.is(0, "in sync").await;
        load.disk.close().await;
        owner.ends_by("TERM");
        register.kill();
        std::fs::write(&file, older).expect("room");
        register.start();
        for refused in [owner.serves_not(), owner.volume("take-over")] {
            assert_ne!(refused.code(), Some(0), "{refused}");
            assert!(refused.stderr.contains("--force"), "{refused}");
        }
        let file = owner.configuration();
        let file = file.to_str().expect("plain text");
        call(&["volume", "take-over", "--force", "-c", file, "db"]).success();
        owner.start();
        owner.is(0, "in sync").await;
        owner.volume("compare").success();
        let again = Load::new(disk_of(&owner).await);
        again.ledger.replace(load.ledger.borrow().clone());
        again.check(3).await.expect("a read");
        again.disk.close().await;
    });
}

#[test]
fn a_copy_that_is_set_back_while_its_mirror_is_used_is_filled_and_never_read_before() {
    let (mut a, mut b) = (Node::storage("direct-sync"), Node::storage("direct-sync"));
    let mut owner = Node::owner([&a, &b]);
    owner.begins_with([&mut a, &mut b]);
    on_lane(async {
        owner.is(0, "in sync").await;
        let load = Load::new(disk_of(&owner).await);
        let file = b.directory.join("copy");
        for _ in 0..2 {
            load.writes_all().await;
            let older = std::fs::read(&file).expect("a copy");
            load.writes_all().await;
            // It is away for less time than it takes to give it up.
            b.kill();
            std::fs::write(&file, older).expect("room");
            b.start();
            load.checks_all().await;
            owner.is(0, "in sync").await;
            owner.volume("compare").success();
        }
        // The only copy goes on as it is.
        a.kill();
        load.write(0).await.expect("the other one lives");
        owner.is(1, "out").await;
        b.kill();
        b.start();
        load.write(0).await.expect("it is back");
        a.start();
        owner.is(0, "in sync").await;
        load.disk.close().await;
    });
}

#[test]
fn the_copy_of_another_mirror_is_left_alone() {
    let storages = [(); 4].map(|()| Node::storage("direct-sync"));
    let [mut a, mut b, mut c, mut d] = storages;
    let (mut one, mut other) = (Node::owner([&a, &b]), Node::owner([&c, &d]));
    one.begins_with([&mut a, &mut b]);
    other.begins_with([&mut c, &mut d]);
    on_lane(async {
        for owner in [&one, &other] {
            owner.is(0, "in sync").await;
        }
        other.ends_by("TERM");
        let load = Load::new(disk_of(&one).await);
        a.kill();
        load.write(0).await.expect("the other copy lives");
        one.is(1, "out").await;
        // By mistake, and while nobody can tell what it is.
        other.volumes = Node::mirror_of([&a, &d], "");
        other.start();
        a.start();
        one.is(0, "in sync").await;
        other.is(1, "it is copy 0 of mirror").await;
        load.writes_all().await;
        one.is(0, "in sync").await;
        one.volume("compare").success();
        load.disk.close().await;
    });
}
