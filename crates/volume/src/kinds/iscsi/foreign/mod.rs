//! A scriptable target for tests of our initiator: one disk that reports and does whatever a test tells it to,
//! including what our own target never would. It runs on any lane, in the simulated world or over real sockets.
//!
//! This file is the disk; [`portal`] has the connections to it, and [`reservations`] decides who may use it.

mod portal;
mod reservations;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
};

use engine::{Duration, net::TcpStream, sync::Notify};
use iscsi::LoginStatus;
use scsi::{UnitReport, opcode, opcode::service_action_in_16::READ_CAPACITY};

use self::reservations::Reservations;

pub use portal::Group;
pub use reservations::LetsIn;

const BLOCK_BYTES: u32 = 512;
const ILLEGAL_REQUEST: u8 = 0x05;

/// What the disk reports about itself, true or not.
#[derive(Clone, Debug)]
pub struct Claims {
    /// MAXIMUM TRANSFER LENGTH (SBC-3 6.5.3); 0: not reported.
    pub transfer_max_blocks: u32,
    /// MAXIMUM COMPARE AND WRITE LENGTH; 0: it has no such command.
    pub compare_max_blocks: u8,
    /// MAXIMUM WRITE SAME LENGTH; 0: not reported.
    pub write_same_max_blocks: u64,
    /// MAXIMUM UNMAP LBA COUNT.
    pub unmap_max_blocks: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
    pub unmap_max_descriptors: u32,
    /// LBPWS (SBC-3 6.5.4): WRITE SAME (16) with UNMAP is supported.
    pub unmaps_same: bool,
    /// LBPRZ (SBC-3 5.16.2): unmapped blocks read as zeroes.
    pub reads_zeroes: bool,
    /// The designators of the device identification page (SPC-4 7.8.6).
    pub designators: Vec<u8>,
}

impl Default for Claims {
    fn default() -> Self {
        Claims {
            transfer_max_blocks: 0,
            compare_max_blocks: 1,
            write_same_max_blocks: 0,
            unmap_max_blocks: u32::MAX,
            unmap_max_descriptors: 1,
            unmaps_same: true,
            reads_zeroes: true,
            designators: Vec::new(),
        }
    }
}

/// The target with its disk.
#[derive(Default)]
pub struct Foreign {
    claims: Claims,
    /// Called with each command's CDB before the command runs; may replace the command's effect.
    instead: RefCell<Option<Box<Chooser>>>,
    /// The designators from now on, if they differ from the claimed ones.
    pub designators: RefCell<Option<Vec<u8>>>,
    /// Its length.
    pub len_blocks: Cell<u64>,
    /// A write is answered with GOOD and an underflow after this many bytes.
    pub takes_max_bytes: Cell<Option<u64>>,
    /// It says that it has no volatile write cache (WCE, SBC-3 6.4.5).
    pub writes_through: Cell<bool>,
    /// It says that it does not take FUA (DPOFUA).
    pub ignores_fua: Cell<bool>,
    /// It says that it is write-protected (WP).
    pub is_protected: Cell<bool>,
    /// UNMAP is GOOD and unmaps nothing, which SBC-3 4.7.3.4 allows.
    pub ignores_unmap: Cell<bool>,
    /// The response to LOGICAL UNIT RESET (RFC 7143 §11.6.1); 0 also discards the late writes.
    pub reset_response: Cell<u8>,
    /// LOGICAL UNIT RESET is neither executed nor answered.
    pub ignores_resets: Cell<bool>,
    /// The asymmetric access state of each portal group (SPC-4 5.15.2); empty: ALUA is not reported.
    pub access: RefCell<BTreeMap<u16, u8>>,
    /// The unit attention that the next command through a portal group gets, whatever the access state there.
    pub attentions: RefCell<BTreeMap<u16, [u8; 3]>>,
    /// Called to decide each login at a portal group.
    at_login: RefCell<Option<Box<Porter>>>,
    /// LBA and number of blocks of each UNMAP.
    pub unmapped: RefCell<Vec<(u64, u32)>>,
    /// Number of blocks of each READ, WRITE and WRITE SAME.
    pub transferred: RefCell<Vec<u32>>,
    /// Whether each WRITE SAME had UNMAP set.
    pub same_unmaps: RefCell<Vec<bool>>,
    /// Commands received, whatever their outcome.
    pub commands: Cell<u64>,
    /// Sessions accepted.
    pub logins: Cell<u64>,
    /// Login attempts, whatever their outcome.
    pub attempts: Cell<u64>,
    /// Open connections.
    pub connected: Cell<u64>,
    /// LOGICAL UNIT RESETs received.
    pub resets: Cell<u64>,
    /// The next command gets a unit attention for a reset.
    reset_is_pending: Cell<bool>,
    blocks: RefCell<BTreeMap<u64, [u8; BLOCK_BYTES as usize]>>,
    /// Writes accepted but not yet on the medium: LBA and data.
    late: RefCell<Vec<(u64, Vec<u8>)>>,
    connections: RefCell<Vec<TcpStream>>,
    /// How many there were.
    accepted: Cell<u64>,
    /// Without any, every command of them is GOOD and none means anything.
    reservations: RefCell<Option<Reservations>>,
    changed: Notify,
}

type Chooser = dyn FnMut(&[u8]) -> Option<Instead>;
type Porter = dyn FnMut(Group) -> AtLogin;

/// What happens instead of a command's normal execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instead {
    /// CHECK CONDITION with this sense key, additional sense code and qualifier.
    Sense([u8; 3]),
    /// As [`Instead::Sense`], after this delay.
    SlowSense(Duration, [u8; 3]),
    /// This SCSI status.
    Status(u8),
    /// This SCSI status, sense data and data-in, whatever was asked for.
    Reply {
        /// SCSI status.
        status: u8,
        /// Sense data.
        sense: Vec<u8>,
        /// Data-in.
        data: Vec<u8>,
    },
    /// Executes the command, then truncates its data-in and overwrites part of it.
    Changed {
        /// Length in bytes.
        len: usize,
        /// Offset in bytes.
        at: usize,
        /// The replacement bytes.
        bytes: Vec<u8>,
    },
    /// Executes the command, and answers after this delay.
    Slow(Duration),
    /// Executes the command after the next one.
    Overtaken,
    /// Executes the command, and from then on the command window does not move (RFC 7143 §4.2.2.1).
    Shut,
    /// Sends these bytes before executing the command.
    After(Vec<u8>),
    /// Executes the command, then asks for a logout (RFC 7143 §11.9.1).
    AskForLogout,
    /// Rejects the command as one whose data does not match its digest (RFC 7143 §11.17.1), and closes the connection.
    RejectAsDamaged,
    /// Closes the connection.
    Drop,
    /// Never answers; a write reaches the medium with [`Foreign::land`].
    Late,
}

/// The outcome of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AtLogin {
    /// Accepted.
    LetIn,
    /// Accepted, but at another portal group than the one it connected to.
    LetInAt(Group),
    /// Refused with this status.
    Refuse(LoginStatus),
    /// Redirected to this address for now.
    Redirect(String),
    /// Redirected to this address for good.
    Move(String),
}

/// The response to a command.
struct Response {
    status: u8,
    sense: Vec<u8>,
    data: Vec<u8>,
    /// As [`iscsi::Outcome::transfer_len`].
    transfer_len: u64,
}

impl std::fmt::Debug for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Foreign({} blocks)", self.len_blocks.get())
    }
}

impl Foreign {
    /// A disk of 1 MiB.
    pub fn new(claims: Claims) -> Foreign {
        Foreign {
            claims,
            len_blocks: Cell::new(2048),
            ..Foreign::default()
        }
    }

    /// From now on, calls `instead` before each command.
    pub fn answer(&self, instead: impl FnMut(&[u8]) -> Option<Instead> + 'static) {
        *self.instead.borrow_mut() = Some(Box::new(instead));
    }

    /// From now on, calls `porter` to decide each login at a portal group.
    pub fn at_login(&self, porter: impl FnMut(Group) -> AtLogin + 'static) {
        *self.at_login.borrow_mut() = Some(Box::new(porter));
    }

    /// Gives the disk persistent reservations at these portal groups. Call it before the first login.
    pub fn reserves(&self, lets_in: LetsIn, groups: &[Group]) {
        let reservations = Reservations::new(lets_in, groups, self.len_blocks.get());
        *self.reservations.borrow_mut() = Some(reservations);
    }

    /// Who is registered, who has reserved the disk, and how often a reservation has ended.
    pub fn reserved(&self) -> (UnitReport, u64) {
        let reservations = self.reservations.borrow();
        let told = reservations.as_ref().map(|it| (it.report(), it.ends));
        told.unwrap_or_default()
    }

    /// Closes every connection.
    pub fn drop_connections(&self) {
        for stream in self.connections.take() {
            stream.shutdown();
        }
    }

    /// Waits until at least `count` writes are [late](Instead::Late).
    pub async fn holds(&self, count: usize) {
        let held = || (self.late.borrow().len() >= count).then_some(());
        self.changed.wait_for(held).await;
    }

    /// Lets the late writes reach the medium, perhaps long after their session has ended.
    pub fn land(&self) {
        for (lba, data) in self.late.take() {
            self.store(lba, &data);
        }
    }

    /// The first byte of a block.
    pub fn first_byte(&self, lba: u64) -> u8 {
        self.blocks.borrow().get(&lba).map_or(0, |block| block[0])
    }

    fn store(&self, lba: u64, data: &[u8]) {
        let mut blocks = self.blocks.borrow_mut();
        for (n, block) in (0..).zip(data.chunks_exact(BLOCK_BYTES as usize)) {
            blocks.insert(
                lba.wrapping_add(n),
                block.try_into().expect("a whole block"),
            );
        }
    }

    fn load(&self, lba: u64, blocks: u64) -> Vec<u8> {
        let stored = self.blocks.borrow();
        let block = |lba| stored.get(&lba).copied().unwrap_or([0; 512]);
        (0..blocks)
            .map(|n| lba.wrapping_add(n))
            .flat_map(block)
            .collect()
    }

    /// The scripted replacement for this command, if any.
    fn instead(&self, cdb: &[u8]) -> Option<Instead> {
        self.commands.set(self.commands.get() + 1);
        if self.reset_is_pending.take() {
            // POWER ON, RESET, OR BUS DEVICE RESET OCCURRED, as tgt reports it.
            const UNIT_ATTENTION: u8 = 0x06;
            return Some(Instead::Sense([UNIT_ATTENTION, 0x29, 0x00]));
        }
        self.instead.borrow_mut().as_mut()?(cdb)
    }

    fn designators(&self) -> Vec<u8> {
        let changed = self.designators.borrow();
        changed.as_ref().unwrap_or(&self.claims.designators).clone()
    }

    /// The response forced by the access state of the portal group that received the command, if any.
    fn access_of(&self, Group(group): Group, cdb: &[u8]) -> Option<Response> {
        const NOT_READY: u8 = 0x02;
        const ACTIVE_MAX: u8 = 1;
        let states = self.access.borrow();
        let state = *states.get(&group)?;
        match (cdb[0], cdb[1], cdb[2]) {
            (0x12, 1, 0x83) => {
                let [high, low] = group.to_be_bytes();
                let port = [1, 0x15, 0, 4, 0, 0, high, low];
                let designators = [&self.designators()[..], &port].concat();
                Some(Response::with(
                    &[&[0, 0x83, 0, designators.len() as u8][..], &designators].concat(),
                ))
            }
            // REPORT TARGET PORT GROUPS
            (0xa3, ..) => {
                let mut data = vec![0, 0, 0, 8 * states.len() as u8];
                for (group, state) in states.iter() {
                    let [high, low] = group.to_be_bytes();
                    data.extend([*state, 0, high, low, 0, 0, 0, 0]);
                }
                Some(Response::with(&data))
            }
            (0x12, ..) => None,
            _ if state > ACTIVE_MAX => Some(Response::check_condition([NOT_READY, 0x04, 0x0b])),
            _ => None,
        }
    }

    /// Executes a command with its data-out.
    fn execute(&self, cdb: &[u8], data: &[u8]) -> Response {
        match (cdb[0], cdb[1], cdb[2]) {
            (opcode::INQUIRY, 1, 0x83) => {
                let designators = self.designators();
                let len = designators.len() as u8;
                Response::with(&[&[0, 0x83, 0, len][..], &designators].concat())
            }
            (opcode::INQUIRY, 1, 0xb0) => {
                let mut page = [0; 64];
                (page[1], page[3]) = (0xb0, 60);
                page[5] = self.claims.compare_max_blocks;
                page[8..12].copy_from_slice(&self.claims.transfer_max_blocks.to_be_bytes());
                page[20..24].copy_from_slice(&self.claims.unmap_max_blocks.to_be_bytes());
                page[24..28].copy_from_slice(&self.claims.unmap_max_descriptors.to_be_bytes());
                page[36..44].copy_from_slice(&self.claims.write_same_max_blocks.to_be_bytes());
                Response::with(&page)
            }
            (opcode::INQUIRY, 1, 0xb2) => {
                const LBPU: u8 = 0x80;
                const LBPWS: u8 = 0x40;
                let same = if self.claims.unmaps_same { LBPWS } else { 0 };
                Response::with(&[0, 0xb2, 0, 4, 0, LBPU | same, 0, 0])
            }
            (opcode::INQUIRY, 0, 0) => Response::with(&[0; 36]),
            // A header, and the caching page.
            (opcode::MODE_SENSE_6, ..) => {
                let wce = if self.writes_through.get() { 0 } else { 0x04 };
                let fua = if self.ignores_fua.get() { 0 } else { 0x10 };
                let protected = if self.is_protected.get() { 0x80 } else { 0 };
                Response::with(&[6, 0, protected | fua, 0, 0x08, 1, wce])
            }
            // READ CAPACITY (16), with LBPME.
            (opcode::SERVICE_ACTION_IN_16, ..) if cdb[1] & 0x1F == READ_CAPACITY => {
                const LBPME: u8 = 0x80;
                const LBPRZ: u8 = 0x40;
                let mut data = [0; 32];
                data[0..8].copy_from_slice(&(self.len_blocks.get() - 1).to_be_bytes());
                data[8..12].copy_from_slice(&BLOCK_BYTES.to_be_bytes());
                data[14] = LBPME | if self.claims.reads_zeroes { LBPRZ } else { 0 };
                Response::with(&data)
            }
            (opcode::READ_10 | opcode::READ_16, ..) => {
                let (lba, blocks) = lba_and_blocks(cdb);
                self.transferred.borrow_mut().push(blocks);
                Response::with(&self.load(lba, blocks.into()))
            }
            (opcode::WRITE_10 | opcode::WRITE_16, ..) => {
                let (lba, blocks) = lba_and_blocks(cdb);
                self.transferred.borrow_mut().push(blocks);
                let taken = self.takes_max_bytes.get().unwrap_or(u64::MAX);
                let taken = taken.min(data.len() as u64);
                self.store(lba, &data[..taken as usize]);
                Response::took(taken)
            }
            (opcode::COMPARE_AND_WRITE, ..) => {
                let (lba, blocks) = lba_and_blocks(cdb);
                let (expected, new) = data.split_at(data.len() / 2);
                let stored = self.load(lba, blocks.into());
                let mut both = stored.iter().zip(expected);
                if let Some(at) = both.position(|(stored, expected)| stored != expected) {
                    return Response::miscompare(at as u32);
                }
                self.store(lba, new);
                Response::took(data.len() as u64)
            }
            (opcode::UNMAP, ..) => {
                let lba = u64::from_be_bytes(data[8..16].try_into().expect("eight bytes"));
                let blocks = u32::from_be_bytes(data[16..20].try_into().expect("four bytes"));
                if blocks > self.claims.unmap_max_blocks {
                    return Response::check_condition([ILLEGAL_REQUEST, 0x26, 0x00]);
                }
                self.unmapped.borrow_mut().push((lba, blocks));
                if !self.ignores_unmap.get() {
                    let mut stored = self.blocks.borrow_mut();
                    stored.retain(|at, _| at.wrapping_sub(lba) >= u64::from(blocks));
                }
                Response::took(data.len() as u64)
            }
            (opcode::WRITE_SAME_16, flags, _) => {
                const UNMAP: u8 = 0x08;
                let (lba, blocks) = lba_and_blocks(cdb);
                self.transferred.borrow_mut().push(blocks);
                self.same_unmaps.borrow_mut().push(flags & UNMAP != 0);
                self.store(lba, &data.repeat(blocks as usize));
                Response::took(data.len() as u64)
            }
            _ => Response::took(data.len() as u64),
        }
    }
}

/// LBA and block count of a READ, WRITE or WRITE SAME in its 10- or 16-byte form.
fn lba_and_blocks(cdb: &[u8]) -> (u64, u32) {
    const GROUP_MASK: u8 = 0xe0;
    const LONG: u8 = 0x80;
    let word = |at: usize| u32::from_be_bytes(cdb[at..at + 4].try_into().expect("four bytes"));
    match cdb[0] & GROUP_MASK {
        LONG => (u64::from(word(2)) << 32 | u64::from(word(6)), word(10)),
        _ => (word(2).into(), word(6) >> 8 & 0xffff),
    }
}

impl Response {
    fn with(data: &[u8]) -> Response {
        Response {
            data: data.to_vec(),
            ..Response::took(data.len() as u64)
        }
    }

    fn took(transfer_len: u64) -> Response {
        Response {
            status: 0,
            sense: Vec::new(),
            data: Vec::new(),
            transfer_len,
        }
    }

    fn check_condition(sense: [u8; 3]) -> Response {
        let [key, asc, ascq] = sense;
        let mut fixed = vec![0; 18];
        (fixed[0], fixed[2], fixed[7]) = (0x70, key, 10);
        (fixed[12], fixed[13]) = (asc, ascq);
        Response {
            sense: fixed,
            ..Response::status(scsi::Status::CheckCondition as u8)
        }
    }

    /// MISCOMPARE DURING VERIFY OPERATION at this offset.
    fn miscompare(at: u32) -> Response {
        const MISCOMPARE: u8 = 0x0e;
        const VALID: u8 = 0x80;
        let mut answer = Response::check_condition([MISCOMPARE, 0x1d, 0x00]);
        answer.sense[0] |= VALID;
        answer.sense[3..7].copy_from_slice(&at.to_be_bytes());
        answer
    }

    fn status(status: u8) -> Response {
        Response {
            status,
            ..Response::took(0)
        }
    }
}
