//! Power cuts at any step of a start, with an administrator who renames everything in between: an identity that an
//! initiator has seen never changes, and what it wrote is still there.

use std::time::Duration;

use engine::sim::{Host, Random, World, seeds};
use sim::{
    assert_occurred,
    node_machine::{Names, Shown},
};
use uuid::Uuid;

const SEEDS: u64 = 200;

/// A machine, and what an initiator has seen of it.
struct Machine {
    world: World,
    host: Host,
    names: Names,
    seen: Option<Uuid>,
    written: u8,
    /// What its logical unit has saved in the current state directory.
    kept: Option<String>,
    renames: u32,
}

/// How a start ended.
#[derive(Debug)]
enum Started {
    Served,
    /// The power was cut.
    Cut,
    Refused(String),
}

impl Machine {
    fn new(seed: u64) -> Machine {
        let world = World::new(seed);
        let host = world.host("server");
        host.put_file("/etc/app.toml", b"");
        // In another directory than the configuration, because syncing one directory does not sync the other.
        host.put_file("/etc/data/other", b"");
        Machine {
            world,
            host,
            names: Names {
                config: "/etc/app.toml".into(),
                volume: "db".into(),
                file: "data/db.img".into(),
            },
            seen: None,
            written: 0,
            kept: None,
            renames: 0,
        }
    }

    /// Starts with power for this many changes of the disk, checks what an initiator sees, and writes; then the power
    /// is cut in any case.
    fn start(&mut self, changes: u64) -> Started {
        self.start_until(changes, Host::power_cut)
    }

    /// The same, with `end` instead of the power cut.
    fn start_until(&mut self, changes: u64, end: fn(&Host)) -> Started {
        let (host, names) = (self.host.clone(), self.names.clone());
        let (seen, written, kept) = (self.seen, self.written, self.kept.clone());
        host.doom_after(changes);
        let started = self.world.block_on(&self.host, async {
            let shown = Shown::start(&host, &names).await?;
            if let Some(seen) = seen {
                assert_eq!(shown.uuid, seen, "another disk is shown");
            }
            // From here on durability is the data path's responsibility.
            host.doom_after(u64::MAX);
            assert_eq!(shown.read().await, written, "not what was written");
            assert_eq!(shown.kept(), kept, "not what was kept");
            shown.keep(&format!("{}\n", written + 1));
            assert!(shown.write(written + 1).await);
            Ok(shown.uuid)
        });
        let started = match started {
            Ok(uuid) => {
                self.seen = Some(uuid);
                self.written += 1;
                self.kept = Some(format!("{}\n", self.written));
                Started::Served
            }
            Err(_) if self.host.is_doomed() => Started::Cut,
            Err(message) => Started::Refused(message),
        };
        end(&self.host);
        self.world.run_for(Duration::from_millis(1));
        self.world.restart(&self.host);
        started
    }

    /// Starts without a power cut on the way.
    #[track_caller]
    fn serves(&mut self) {
        match self.start(u64::MAX) {
            Started::Served => {}
            other => panic!("{other:?}"),
        }
    }

    /// The start must be refused, and nothing created in place of the known disk.
    #[track_caller]
    fn is_refused(&mut self, part: &str) {
        match self.start(u64::MAX) {
            Started::Refused(message) => assert!(message.contains(part), "{message}"),
            other => panic!("{other:?}"),
        }
    }

    fn fresh(&mut self, name: &str) -> String {
        self.renames += 1;
        format!("{name}{}", self.renames)
    }

    fn rename_volume(&mut self) {
        self.names.volume = self.fresh("volume");
    }

    fn rename_file(&mut self) {
        let old = self.names.path();
        self.names.file = self.fresh("data/file");
        self.host.rename(old, self.names.path());
    }

    /// Renames the configuration; its state stays under the old name.
    fn rename_config(&mut self) -> Names {
        let old = self.names.clone();
        let name = self.fresh("config") + ".toml";
        self.names.config.set_file_name(name);
        self.host.rename(&old.config, &self.names.config);
        old
    }

    fn rename_config_and_state(&mut self) {
        let old = self.rename_config();
        self.host.rename(old.state(), self.names.state());
    }

    /// Removes the mark, as a copy without attributes does.
    fn lose_mark(&mut self) {
        self.host.set_mark(self.names.path(), None);
    }

    /// Moves the configuration and its file, but not its state.
    fn leave_state(&mut self) {
        let old = self.rename_config();
        let hidden = self.fresh("/old/hidden");
        self.host.rename(old.state(), hidden);
        self.kept = None;
    }
}

#[test]
fn a_first_start_is_whole_or_nobody_has_seen_it() {
    let mut cuts = 0;
    seeds(SEEDS, |seed| {
        for changes in 1.. {
            let mut machine = Machine::new(seed);
            let started = machine.start(changes);
            machine.serves();
            machine.serves();
            match started {
                Started::Served => break,
                Started::Cut => cuts += 1,
                Started::Refused(message) => panic!("{message}"),
            }
        }
    });
    assert_occurred([("cuts", cuts)]);
}

#[test]
fn what_a_killed_start_left_is_made_durable_by_the_next() {
    let mut killed = 0;
    seeds(SEEDS, |seed| {
        for changes in 1.. {
            let mut machine = Machine::new(seed);
            // The system stays up with all that was done, durable or not.
            let started = machine.start_until(changes, Host::kill);
            machine.serves();
            machine.serves();
            match started {
                Started::Served => break,
                Started::Cut => killed += 1,
                Started::Refused(message) => panic!("{message}"),
            }
        }
    });
    assert_occurred([("starts that were killed", killed)]);
}

#[test]
fn a_start_after_any_change_shows_the_same_disk_whenever_the_power_goes() {
    type Change = fn(&mut Machine);
    let changes: [Change; 6] = [
        |_| {},
        Machine::rename_volume,
        Machine::rename_file,
        Machine::rename_config_and_state,
        Machine::lose_mark,
        Machine::leave_state,
    ];
    let mut cuts = [0; 6];
    seeds(SEEDS, |seed| {
        for (cuts, change) in cuts.iter_mut().zip(changes) {
            for steps in 1.. {
                let mut machine = Machine::new(seed);
                machine.serves();
                change(&mut machine);
                let started = machine.start(steps);
                machine.serves();
                match started {
                    Started::Served => break,
                    Started::Cut => *cuts += 1,
                    Started::Refused(message) => panic!("{message}"),
                }
            }
        }
    });
    let [nothing, volume, file, config, mark, state] = cuts;
    assert_occurred([
        ("cuts after no change", nothing),
        ("cuts after the volume's new name", volume),
        ("cuts after the file's new name", file),
        ("cuts after the configuration's new name", config),
        ("cuts without a mark", mark),
        ("cuts without a state", state),
    ]);
}

#[test]
fn years_of_renames_and_power_cuts_leave_one_disk() {
    let mut served = 0;
    seeds(SEEDS, |seed| {
        let mut machine = Machine::new(seed);
        let mut random = Random::new(seed ^ 0x1d);
        for _ in 0..40 {
            let steps = if random.chance(0.5) {
                1 + random.below(40)
            } else {
                u64::MAX
            };
            let is_known = machine.seen.is_some();
            match random.below(8) {
                _ if !is_known => {}
                0 => machine.rename_volume(),
                1 => machine.rename_file(),
                2 => machine.rename_config_and_state(),
                3 => {
                    // Either the mark or the record is there.
                    machine.serves();
                    machine.lose_mark();
                    machine.serves();
                }
                4 => machine.leave_state(),
                5 => {
                    // Its state stays behind: refused until that is moved too.
                    machine.serves();
                    let old = machine.rename_config();
                    machine.is_refused("which is recorded not in");
                    machine.host.rename(old.state(), machine.names.state());
                }
                6 => {
                    // An empty mount point, also under the configuration's new name.
                    machine.serves();
                    let path = machine.names.path();
                    machine.host.rename(&path, "/away");
                    machine.is_refused("served before");
                    let old = machine.rename_config();
                    machine.is_refused("served before");
                    machine.host.rename(old.state(), machine.names.state());
                    assert!(machine.host.read_file(&path).is_none(), "it was made anew");
                    machine.host.rename("/away", &path);
                }
                _ => {
                    // In its place a file that nobody has written to.
                    machine.serves();
                    let path = machine.names.path();
                    machine.host.rename(&path, "/away");
                    machine.host.put_file(&path, &[0; 64 << 10]);
                    machine.is_refused("served before");
                    machine.host.remove_file(&path);
                    machine.host.rename("/away", &path);
                }
            }
            if let Started::Refused(message) = machine.start(steps) {
                panic!("{message}");
            }
            served += u64::from(machine.written);
        }
        machine.serves();
    });
    assert!(served > SEEDS * 100, "{served}");
}
