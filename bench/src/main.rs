//! The target benchmark: the same loads from one core against targets on another, in turn within one run, with the CPU
//! time that each side spends for an I/O. `make bench` runs it.
//!
//!     bench [--only TEXT] [--rounds N] [--seconds S] [--dir DIR] [--json FILE]
//!           [NAME=iscsi://ADDRESS:PORT/IQN/LUN,PID...] [overwrite]
//!
//! The first loads are realistic ones by libiscsi, next to their floors: the same bytes through TCP alone and the same I/O
//! on the file alone. Then our own initiator runs at full speed. Targets are compared only on the same direct file, or on
//! files of their own through the page cache. A disk in the target's own memory shows what the target costs without a
//! medium, and what our initiator costs compared with libiscsi. Other targets that run already are measured as well, if
//! their disks are empty or may be overwritten; seven files of 512 MiB go to DIR, removed at the end.
#![forbid(unsafe_code)]

mod clients;
mod lanes;
mod loads;
mod table;
mod target;

use clients::Programs;
use harness::libiscsi::Load;
use harness::samples::{Call, Samples};
use lab::load::{Operation, Workload};
use loads::{OWN, OwnLoad, STOCK, StockLoad};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::path::PathBuf;
use table::{BARE_TCP, FILE_ALONE, OUR_CLIENT, Table};
use target::{Medium, Target};

/// The first two CPUs that this process may use.
pub(crate) struct Cores {
    pub(crate) target: usize,
    pub(crate) client: usize,
}

impl Cores {
    fn get() -> Cores {
        let mask = sched_getaffinity(None).expect("the kernel tells the CPUs");
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| mask.is_set(cpu));
        match (cpus.next(), cpus.next()) {
            (Some(target), Some(client)) => Cores { target, client },
            _ => panic!("two CPUs are needed: one for the target, one for the client"),
        }
    }
}

/// Pins this thread, and anything that it starts from now on, to these CPUs.
pub(crate) fn pin(cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    sched_setaffinity(None, &set).expect("CPUs that this process may use");
}

/// What is under way.
struct Bench {
    cores: Cores,
    seconds: f64,
    programs: Programs,
    targets: Vec<Target>,
    table: Table,
}

fn main() {
    let call = Call::read(10, 0.25);
    let option = |name: &str, default: &str| {
        let value = call.options.get(name);
        value.map_or_else(|| default.to_owned(), String::clone)
    };
    let (only, directory) = (option("only", ""), PathBuf::from(option("dir", ".")));
    let names = STOCK.iter().map(|load| load.name);
    let names = names
        .chain(OWN.iter().map(|load| load.name))
        .chain([lanes::NAME]);
    let names: Vec<&str> = names.collect();
    let is_wanted = |name: &str| name.contains(&only);
    if !names.iter().any(|name| is_wanted(name)) {
        eprintln!(
            "--only {only}: write a part of one of these:\n  {}",
            names.join("\n  ")
        );
        std::process::exit(2);
    }
    let may_overwrite = call.parts.iter().any(|part| part == "overwrite");
    let others = call.parts.iter().filter(|part| *part != "overwrite");
    let others = others.map(|text| {
        Target::other(text).unwrap_or_else(|| {
            eprintln!("{text}: write NAME=iscsi://ADDRESS:PORT/IQN/LUN,PID");
            std::process::exit(2)
        })
    });
    let others: Vec<Target> = others.collect();
    others
        .iter()
        .for_each(|other| other.check_free(may_overwrite));
    let cores = Cores::get();
    pin(&[cores.target]);
    let programs = Programs::new();
    let mut targets = Target::all(&directory);
    targets.extend(others);
    pin(&[cores.client]);
    targets.iter().for_each(Target::fill);
    let mut bench = Bench {
        cores,
        seconds: call.seconds,
        programs,
        targets,
        table: Table::default(),
    };
    for round in 0..call.rounds {
        let tell = |name| eprintln!("round {} of {}: {name}", round + 1, call.rounds);
        for load in STOCK.iter().filter(|load| is_wanted(load.name)) {
            tell(load.name);
            bench.stock(load, round);
        }
        for load in OWN.iter().filter(|load| is_wanted(load.name)) {
            tell(load.name);
            bench.own(load);
        }
    }
    println!("{} rounds of {} s, in turn", call.rounds, call.seconds);
    bench.table.print(&bench.targets);
    let Bench {
        cores,
        table,
        targets,
        ..
    } = bench;
    drop(targets);
    let lanes = match is_wanted(lanes::NAME) {
        true => lanes::run(&cores, &directory, call.rounds, call.seconds),
        false => Samples::default(),
    };
    if let Some(file) = &call.json {
        table.write(file, &call, &lanes);
    }
}

impl Bench {
    fn stock(&mut self, stock: &StockLoad, round: usize) {
        let (name, load, seconds) = (stock.name, stock.load, self.seconds);
        let tcp = stock
            .has_floors()
            .then(|| self.programs.bare_tcp(&load, seconds));
        if let Some(tcp) = tcp {
            self.table.note(name, BARE_TCP, &tcp);
        }
        // A run may leave work behind, such as dirty pages. Rotating the order spreads that over all the others.
        for turn in 0..self.targets.len() {
            let target = &self.targets[(round + turn) % self.targets.len()];
            let is_in_memory = target.is_own && target.medium == Some(Medium::Memory);
            let is_for_it = match (stock.is_about_exclusion, target.wait) {
                (true, _) => is_in_memory,
                (false, Some(_)) => stock.is_about_waiting(),
                (false, None) => true,
            };
            if !is_for_it {
                continue;
            }
            let done = load.run(&self.programs.client, &target.url, seconds, target.pid);
            self.table.note(name, &target.name, &done);
            if let (true, Some(tcp)) = (target.is_own, tcp) {
                pin(&[self.cores.target]);
                let alone = self.programs.file_alone(target, &load, seconds);
                pin(&[self.cores.client]);
                if let Some(alone) = &alone {
                    self.table
                        .note(name, &format!("{}{FILE_ALONE}", target.name), alone);
                }
                let alone_us = alone.map_or(0.0, |alone| alone.target_us);
                self.table
                    .note_floor(name, &target.name, tcp.target_us + alone_us);
            }
            if let (true, Some(workload)) = (is_in_memory, stock.workload()) {
                let done = clients::own(target, &workload, 1, seconds);
                self.table.note(name, OUR_CLIENT, &done);
            }
        }
    }

    fn own(&mut self, own: &OwnLoad) {
        let OwnLoad {
            name,
            sessions,
            load,
        } = *own;
        let workload = Workload {
            order: load.order,
            ..Workload::closed(load.operation, load.size_bytes, load.depth * sessions)
        };
        let floor = Load {
            operation: if load.operation == Operation::Read {
                "read"
            } else {
                "write"
            },
            size_bytes: load.size_bytes as u32,
            sessions: 1,
            depth: load.depth as u32,
            rate: 0,
        };
        let tcp = (sessions == 1).then(|| self.programs.bare_tcp(&floor, self.seconds));
        if let Some(tcp) = &tcp {
            self.table.note(name, BARE_TCP, tcp);
        }
        for target in &self.targets {
            // With direct I/O the disk sets the pace, and the first loads cover that and the ways to wait.
            if target.medium == Some(Medium::DirectFile) || target.wait.is_some() {
                continue;
            }
            let done = clients::own(target, &workload, sessions, self.seconds);
            self.table.note(name, &target.name, &done);
            if let (true, Some(tcp)) = (target.is_own, tcp) {
                self.table.note_floor(name, &target.name, tcp.target_us);
            }
        }
    }
}
