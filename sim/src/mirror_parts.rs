//! What mirrors over simulated machines are made of: the configurations of storages and registers, and what lies in their
//! files.

use std::path::Path;

use ::mirror::{
    copy::{BLOCK_BYTES, CopyState, METADATA_BYTES, MetadataBlock, decode_bits, newest},
    register::Record,
};
use engine::sim::{Host, Random};

/// The target of a storage.
pub(crate) const STORAGE: &str = "iqn.2026-11.io.sanstone:storage";
/// The length of the mirror's data: eight regions.
pub(crate) const DATA_KIB: u64 = 512;
pub(crate) const COPY_BYTES: u64 = METADATA_BYTES + (DATA_KIB << 10);
/// The file of a copy, where it is.
pub const COPY: &str = "/srv/copy";
/// Where a daemon keeps what it knows.
pub const STATE: &str = "/srv/state";
/// A state directory that was lost.
pub(crate) const LOST_STATE: &str = "/srv/lost";
/// The register on a LUN, where it is, with its slots.
const LUN_REGISTER: &str = "/srv/register";
const SLOT_BYTES: u64 = 4096;
pub(crate) const LIMITS: &str =
    "[limits]\ncommands = 16\ntransfer = \"64KiB\"\ndata_segment = \"16KiB\"\n";

/// What a world is drawn for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caches {
    /// As a mirror requires it.
    None,
    /// Every copy has a volatile cache, which only a mirror with a bug accepts.
    Volatile,
}

/// The start of all configurations: low limits, so that they are reached, and short timeouts.
pub(crate) fn settings(lanes: usize) -> String {
    format!(
        "lanes = {lanes}\nstate = \"{STATE}\"\nmemory = \"32MiB\"\nping_interval = \"2s\"\npeer_timeout = \"5s\"\n"
    )
}

/// A file with a copy.
pub(crate) fn file(random: &mut Random, caches: Caches) -> String {
    let mode = ["write-through", "direct-sync"][random.index(2)];
    let mode = match caches {
        Caches::None => mode,
        Caches::Volatile => "write-back",
    };
    format!("file = {{ path = \"copy\", size = \"{COPY_BYTES}B\", cache = \"{mode}\" }}")
}

/// A storage that serves it.
pub(crate) fn storage_text(random: &mut Random, lanes: usize, caches: Caches) -> String {
    let (settings, file) = (settings(lanes), file(random, caches));
    format!(
        "{settings}{LIMITS}[volume.copy]\n{file}\n[target.\"{STORAGE}\"]\nluns = [\"copy\"]\nallow = [\"*\"]\n"
    )
}

/// The LUN with the register.
pub(crate) fn register_text() -> String {
    let settings = settings(1);
    format!(
        "{settings}{LIMITS}[volume.register]\nfile = {{ path = \"register\", size = \"1MiB\", cache = \"direct-sync\" }}\n\
         [target.\"{STORAGE}\"]\nluns = [\"register\"]\nallow = [\"*\"]\n"
    )
}

/// The disk of the storage, or the register, at `address`, as `initiator` uses it.
pub(crate) fn remote(address: &str, initiator: &str) -> String {
    format!(
        "{{ iscsi = {{ url = \"iscsi://{address}/{STORAGE}/0\", initiator = \"{initiator}\", connect_timeout = \"1s\", \
         request_timeout = \"2s\", reconnect_timeout = \"4s\" }} }}"
    )
}

/// The record on the LUN that `machine` serves.
pub(crate) fn record_on(machine: &Host) -> Record {
    let slots = (0..).map(|slot| {
        let bytes = machine.read_file_at(LUN_REGISTER, slot * SLOT_BYTES, SLOT_BYTES);
        bytes.expect("a LUN")
    });
    let mut slots = slots.take_while(|bytes| !bytes.is_empty());
    let record = slots.find_map(|slot| Record::decode(&slot).ok());
    record.expect("it has a record")
}

/// The record in the file `path` of `machine`.
pub(crate) fn record_in(machine: &Host, path: impl AsRef<Path>) -> Record {
    let sector = machine.read_file(path);
    Record::decode(&sector.expect("it has a register")).expect("it has a record")
}

/// What the file of a copy on `machine` holds.
pub(crate) fn copy_on(machine: &Host) -> Vec<u8> {
    machine.read_file(COPY).expect("a copy")
}

/// A block of the metadata of the copy on `machine`.
fn metadata_on(machine: &Host, block: MetadataBlock) -> Vec<u8> {
    let bytes = machine.read_file_at(COPY, block.at(COPY_BYTES), BLOCK_BYTES as u64);
    bytes.expect("a copy")
}

/// What is kept in the copy on `machine`.
pub(crate) fn kept_on(machine: &Host) -> CopyState {
    kept([0, 1].map(|slot| metadata_on(machine, MetadataBlock::Kept(slot))))
}

/// What is kept in a copy.
pub(crate) fn kept_in(copy: &[u8]) -> CopyState {
    kept([0, 1].map(|slot| &copy[MetadataBlock::Kept(slot).at(COPY_BYTES) as usize..]))
}

fn kept(slots: [impl AsRef<[u8]>; 2]) -> CopyState {
    let found = newest(slots.map(|slot| CopyState::decode(slot.as_ref())));
    found.expect("a copy of a mirror keeps something").1
}

/// Whether the bitmap of the copy on `machine` marks `region`.
pub(crate) fn is_marked(machine: &Host, region: usize) -> bool {
    let bits = decode_bits(&metadata_on(machine, MetadataBlock::Bitmap(0)));
    bits[region / 8] & 1 << (region % 8) != 0
}

/// Compares the data of two copies.
///
/// # Panics
/// Where they differ.
pub(crate) fn compare(copies: [Vec<u8>; 2]) {
    let [first, second] = copies.map(|mut copy| {
        copy.truncate((DATA_KIB << 10) as usize);
        copy
    });
    let differs = first.iter().zip(&second).position(|(a, b)| a != b);
    assert_eq!(differs, None, "the copies differ from this byte on");
}
