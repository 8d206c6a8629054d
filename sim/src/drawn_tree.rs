//! Draws a tree of volumes as the text of its configuration: one to three layers of every kind over leaves of files,
//! memory or disks of another machine, each of which lies beneath a `fault` layer.

use std::{ops::AddAssign, time::Duration};

use engine::sim::Random;
use volume::{
    ErrorKind,
    layer::fault::{FaultAction, FaultOperation, Rule},
};

/// What a child of a stripe or concat reserves at its start.
const RESERVED_BYTES: u64 = 1 << 20;
const MIB: u64 = 1 << 20;
/// The smallest and the largest unit of a stripe, as powers of two.
const UNIT_SHIFTS: [u64; 2] = [12, 22];

/// The name of the machine that serves the remote leaves.
pub const FAR: &str = "far";
const FAR_TARGET: &str = "iqn.2026-11.io.sanstone:far";
/// Where files may keep what was written, as the configuration writes it.
const CACHING: [&str; 6] = [
    "direct",
    "direct",
    "write-back",
    "write-back",
    "direct-sync",
    "write-through",
];

/// What the leaves of a tree may be beside files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaves {
    /// Nothing.
    Files,
    /// Memory.
    Memory,
    /// Disks of another machine.
    Remote,
}

/// A drawn tree.
#[derive(Clone, Debug, Default)]
pub struct DrawnTree {
    /// The configuration. The tree is its volume `tree`; each stripe and concat in it is a volume of its own.
    pub text: String,
    /// The stripes and concats, each after those in it.
    pub families: Vec<String>,
    /// The volumes that are memory.
    pub in_memory: Vec<String>,
    /// The configuration of the daemon on the machine [`FAR`], if some leaves are its disks.
    pub far: Option<String>,
    /// The places where something begins anew: multiples of these, in bytes.
    pub units: Vec<u64>,
    /// How often each kind is in it, and units of extreme length.
    pub kinds: Kinds,
}

/// How often something is in a tree.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kinds {
    /// Stripes.
    pub stripes: u64,
    /// Of these, those with units of 4 KiB.
    pub smallest_units: u64,
    /// Of these, those with units of 4 MiB.
    pub largest_units: u64,
    /// Concats.
    pub concats: u64,
    /// Stripes and concats below another one.
    pub families_in_families: u64,
    /// Caches.
    pub caches: u64,
    /// Throttles.
    pub throttles: u64,
    /// Layers that count.
    pub stats: u64,
    /// Leaves that are files.
    pub files: u64,
    /// Leaves that are memory.
    pub memory: u64,
    /// Leaves that are disks of another machine.
    pub remote: u64,
}

impl AddAssign for Kinds {
    fn add_assign(&mut self, other: Kinds) {
        self.stripes += other.stripes;
        self.smallest_units += other.smallest_units;
        self.largest_units += other.largest_units;
        self.concats += other.concats;
        self.families_in_families += other.families_in_families;
        self.caches += other.caches;
        self.throttles += other.throttles;
        self.stats += other.stats;
        self.files += other.files;
        self.memory += other.memory;
        self.remote += other.remote;
    }
}

struct Drawing<'a> {
    random: &'a mut Random,
    tree: DrawnTree,
    volumes: String,
    block_size: u32,
    may_be: Leaves,
    leaves: usize,
    /// The volumes of the other machine, and their names in the order of their LUNs.
    far: String,
    luns: Vec<String>,
}

impl DrawnTree {
    /// Draws a tree. Some of its leaves may be what `may_be` says.
    pub fn draw(random: &mut Random, may_be: Leaves) -> DrawnTree {
        let block_size = if random.chance(0.5) { 512 } else { 4096 };
        let layers = 1 + random.index(3);
        let len = MIB / 2 + random.below(16) * MIB / 4;
        let mut drawing = Drawing {
            random,
            tree: DrawnTree::default(),
            volumes: String::new(),
            block_size,
            may_be,
            leaves: 0,
            far: String::new(),
            luns: Vec::new(),
        };
        let root = drawing.node(layers, len, 0);
        drawing.tree.far = drawing.far_daemon();
        let Drawing {
            mut tree, volumes, ..
        } = drawing;
        let root = match root.starts_with('"') {
            true => format!("{{ stats = {{ of = {root} }} }}"),
            false => root,
        };
        tree.text = format!("{volumes}tree = {root}\n");
        tree
    }
}

impl Drawing<'_> {
    /// A node of at least `len` bytes with this many layers, within `families` stripes and concats.
    fn node(&mut self, layers: usize, len: u64, families: u64) -> String {
        if layers == 0 {
            return self.leaf(len);
        }
        match self.random.below(if families > 1 { 3 } else { 7 }) {
            0 => {
                self.tree.kinds.caches += 1;
                let size = 1 + self.random.below(2);
                // Remote disks have no other user.
                let only = match self.may_be {
                    Leaves::Remote => "only_writer = true, ",
                    _ => "",
                };
                let of = self.node(layers - 1, len, families);
                format!("{{ cache = {{ size = \"{size}MiB\", {only}of = {of} }} }}")
            }
            1 => {
                self.tree.kinds.throttles += 1;
                let rate = ["200Mbit/s", "1Gbit/s", "10Gbit/s"][self.random.index(3)];
                let latency = self.random.below(300);
                let of = self.node(layers - 1, len, families);
                format!(
                    "{{ throttle = {{ rate = \"{rate}\", latency = \"{latency}us\", of = {of} }} }}"
                )
            }
            2 => {
                self.tree.kinds.stats += 1;
                let of = self.node(layers - 1, len, families);
                format!("{{ stats = {{ of = {of} }} }}")
            }
            3 | 4 => self.stripe(layers, len, families),
            _ => self.concat(layers, len, families),
        }
    }

    fn stripe(&mut self, layers: usize, len: u64, families: u64) -> String {
        let shift = match self.random.below(4) {
            0 => UNIT_SHIFTS[0],
            1 => UNIT_SHIFTS[1],
            _ => UNIT_SHIFTS[0] + self.random.below(UNIT_SHIFTS[1] - UNIT_SHIFTS[0]),
        };
        let unit = 1u64 << shift;
        let children = 2 + self.random.below(2);
        self.tree.kinds.stripes += 1;
        self.tree.kinds.smallest_units += u64::from(shift == UNIT_SHIFTS[0]);
        self.tree.kinds.largest_units += u64::from(shift == UNIT_SHIFTS[1]);
        self.tree.units.push(unit);
        let data = len.div_ceil(children * unit) * unit;
        let setting = format!("unit = \"{}KiB\", ", unit >> 10);
        let lens = (0..children).map(|_| data).collect();
        self.family("stripe", &setting, layers, lens, families)
    }

    fn concat(&mut self, layers: usize, len: u64, families: u64) -> String {
        let children = 2 + self.random.below(2);
        self.tree.kinds.concats += 1;
        let mut lens = Vec::new();
        for _ in 0..children {
            let data = (len / children).next_multiple_of(MIB) + self.random.below(2) * MIB;
            self.tree.units.push(lens.iter().sum::<u64>() + data);
            lens.push(data);
        }
        self.family("concat", "", layers, lens, families)
    }

    /// A stripe or concat over children with so much data, in any order: a volume of its own.
    fn family(
        &mut self,
        kind: &str,
        setting: &str,
        layers: usize,
        lens: Vec<u64>,
        families: u64,
    ) -> String {
        self.tree.kinds.families_in_families += u64::from(families > 0);
        let children = lens.into_iter().map(|data| {
            // What does not fill a unit stays unused.
            let len = RESERVED_BYTES + data + self.random.below(2) * 4096;
            self.node(layers - 1, len, families + 1)
        });
        let of = children.collect::<Vec<_>>().join(", ");
        let name = format!("family{}", self.tree.families.len());
        self.volumes += &format!("{name}.{kind} = {{ {setting}of = [{of}] }}\n");
        self.tree.families.push(name.clone());
        format!("\"{name}\"")
    }

    fn leaf(&mut self, len: u64) -> String {
        let (number, block_size) = (self.leaves, self.block_size);
        self.leaves += 1;
        let size = len.div_ceil(4096) * 4;
        let is_other = self.may_be != Leaves::Files && self.random.chance(0.6);
        let cache = CACHING[self.random.index(CACHING.len())];
        let file = format!(
            "file = {{ path = \"disk{number}\", size = \"{size}KiB\", cache = \"{cache}\", \
             block_size = {block_size} }}"
        );
        let leaf = match self.may_be {
            Leaves::Memory if is_other => {
                self.tree.kinds.memory += 1;
                let name = format!("ram{number}");
                self.volumes += &format!(
                    "{name}.ram = {{ size = \"{size}KiB\", block_size = {block_size} }}\n"
                );
                self.tree.in_memory.push(name.clone());
                format!("\"{name}\"")
            }
            Leaves::Remote if is_other => self.remote(&file),
            _ => {
                self.tree.kinds.files += 1;
                format!("{{ {file} }}")
            }
        };
        let rules: Vec<String> = (0..self.random.below(3)).map(|_| self.rule()).collect();
        let rules = rules.join(", ");
        format!("{{ fault = {{ rules = [{rules}], of = {leaf} }} }}")
    }

    /// A disk of the other machine, which has this `file` for it.
    fn remote(&mut self, file: &str) -> String {
        self.tree.kinds.remote += 1;
        let lun = self.luns.len();
        self.far += &format!("[volume.d{lun}]\n{file}\n");
        self.luns.push(format!("\"d{lun}\""));
        format!(
            "{{ iscsi = {{ url = \"iscsi://{FAR}/{FAR_TARGET}/{lun}\", \
             initiator = \"iqn.2026-11.io.sanstone:machine\", connect_timeout = \"1s\", \
             request_timeout = \"2s\", reconnect_timeout = \"300s\", wait_at_start = \"300s\" }} }}"
        )
    }

    /// The configuration of the daemon on the other machine, if it has a disk of the tree.
    fn far_daemon(&self) -> Option<String> {
        let (volumes, luns) = (&self.far, self.luns.join(", "));
        (!luns.is_empty()).then(|| {
            format!(
                "lanes = 1\nmemory = \"32MiB\"\nping_interval = \"2s\"\npeer_timeout = \"5s\"\n{volumes}\
                 [target.\"{FAR_TARGET}\"]\nluns = [{luns}]\nallow = [\"*\"]\n"
            )
        })
    }

    /// A rule that lets the volume open.
    fn rule(&mut self) -> String {
        let on = ["read", "write", "flush", "discard"][self.random.index(4)];
        let (skip, times) = (20 + self.random.below(40), 1 + self.random.below(3));
        let action = match self.random.below(3) {
            0 => format!("delay = \"{}us\"", 1 + self.random.below(5000)),
            1 => "fail = \"medium\"".to_owned(),
            _ => "fail = \"timed-out\"".to_owned(),
        };
        format!("{{ on = \"{on}\", skip = {skip}, times = {times}, {action} }}")
    }
}

/// A rule for some of the next requests of a leaf: they fail, though perhaps done all the same, or are delayed.
pub fn draw_rule(random: &mut Random) -> Rule {
    let kinds = [ErrorKind::Medium, ErrorKind::NoSpace, ErrorKind::TimedOut];
    let kind = kinds[random.index(kinds.len())];
    let on = [
        FaultOperation::Read,
        FaultOperation::Write,
        FaultOperation::Write,
        FaultOperation::Discard,
        FaultOperation::Flush,
    ];
    let on = on[random.index(on.len())];
    Rule {
        on: random.chance(0.8).then_some(on),
        range: None,
        skip: random.below(25),
        times: Some(1 + random.below(3)),
        action: match random.below(3) {
            0 => FaultAction::Fail(kind),
            1 => FaultAction::FailAfter(kind),
            _ => FaultAction::Delay(Duration::from_micros(1 + random.below(10_000))),
        },
    }
}
