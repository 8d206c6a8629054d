//! A target that is not ours, for tests of what our initiator makes of it: its disk is all zeroes
//! and says what a test puts into it, also what our own target never would.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::SocketAddr,
    rc::Rc,
};

use engine::{
    Duration, Gather,
    net::{FramedReader, TcpListener, TcpStream},
    spawn,
};
use iscsi::{
    CommandRequest, Isid, Outcome, RxData, TargetConfig, TargetConnection, TargetEvent, TaskId,
    TransmitData, frame::frame,
};

use super::{IscsiConfig, IscsiDisk};
use crate::test_volume::on_lane;

const BLOCK_BYTES: u32 = 512;
const ILLEGAL_REQUEST: u8 = 0x05;

/// The disk: what it says of itself, and what it does.
#[derive(Default)]
pub(super) struct Foreign {
    pub(super) len_blocks: u64,
    /// MAXIMUM TRANSFER LENGTH and MAXIMUM WRITE SAME LENGTH (SBC-3 6.5.3); 0: none is told.
    pub(super) transfer_max_blocks: u32,
    pub(super) write_same_max_blocks: u64,
    /// MAXIMUM UNMAP LBA COUNT and MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT (SBC-3 6.5.3).
    pub(super) unmap_max_blocks: u32,
    pub(super) unmap_max_descriptors: u32,
    /// A write is answered with GOOD and an underflow after so many bytes.
    pub(super) takes_max_bytes: Cell<Option<u64>>,
    /// Sense key, additional sense code and qualifier that the next command ends with.
    pub(super) sense: Cell<Option<[u8; 3]>>,
    /// LBA and number of blocks of each UNMAP.
    pub(super) unmapped: RefCell<Vec<(u64, u32)>>,
    /// Number of blocks of each READ, WRITE and WRITE SAME.
    pub(super) transferred: RefCell<Vec<u32>>,
}

/// How a command ends.
struct Answer {
    sense: Option<[u8; 3]>,
    data: Vec<u8>,
    /// As [`Outcome::transfer_len`].
    transfer_len: u64,
}

impl Foreign {
    /// Runs `test` with a volume that is this disk.
    pub(super) fn with(self, test: impl AsyncFnOnce(&IscsiDisk, &Foreign)) {
        on_lane(async {
            let listener = TcpListener::bind(([127, 0, 0, 1], 0).into()).expect("a free port");
            let (address, foreign) = (listener.local_addr(), Rc::new(self));
            let served = foreign.clone();
            spawn(async move {
                while let Ok(stream) = listener.accept().await {
                    spawn(serve(stream, served.clone()));
                }
            });
            let disk = IscsiDisk::open(disk_at(address)).await.expect("a login");
            test(&disk, &foreign).await;
            disk.close().await;
        });
    }

    /// Executes a command with its data-out.
    fn execute(&self, cdb: &[u8], data: &[u8]) -> Answer {
        if let Some(sense) = self.sense.take() {
            return Answer::check_condition(sense);
        }
        match (cdb[0], cdb[1], cdb[2]) {
            // INQUIRY
            (0x12, 1, 0xb0) => {
                let mut page = [0; 64];
                (page[1], page[3]) = (0xb0, 60);
                page[8..12].copy_from_slice(&self.transfer_max_blocks.to_be_bytes());
                page[20..24].copy_from_slice(&self.unmap_max_blocks.to_be_bytes());
                page[24..28].copy_from_slice(&self.unmap_max_descriptors.to_be_bytes());
                page[36..44].copy_from_slice(&self.write_same_max_blocks.to_be_bytes());
                Answer::with(&page)
            }
            (0x12, 1, 0xb2) => {
                const LBPU: u8 = 0x80;
                const LBPWS: u8 = 0x40;
                Answer::with(&[0, 0xb2, 0, 4, 0, LBPU | LBPWS, 0, 0])
            }
            (0x12, 0, 0) => Answer::with(&[0; 36]),
            // MODE SENSE (6): a header, and the caching page with WCE
            (0x1a, ..) => Answer::with(&[6, 0, 0, 0, 0x08, 1, 0x04]),
            // READ CAPACITY (16), with LBPME
            (0x9e, ..) => {
                let mut data = [0; 32];
                data[0..8].copy_from_slice(&(self.len_blocks - 1).to_be_bytes());
                data[8..12].copy_from_slice(&BLOCK_BYTES.to_be_bytes());
                data[14] = 0x80;
                Answer::with(&data)
            }
            // READ (10)
            (0x28, ..) => {
                let blocks = u16::from_be_bytes([cdb[7], cdb[8]]);
                self.transferred.borrow_mut().push(blocks.into());
                Answer::with(&vec![0; usize::from(blocks) * BLOCK_BYTES as usize])
            }
            // WRITE (10)
            (0x2a, ..) => {
                let blocks = u16::from_be_bytes([cdb[7], cdb[8]]);
                self.transferred.borrow_mut().push(blocks.into());
                let taken = self.takes_max_bytes.get().unwrap_or(u64::MAX);
                Answer::took(taken.min(data.len() as u64))
            }
            // UNMAP
            (0x42, ..) => {
                let lba = u64::from_be_bytes(data[8..16].try_into().expect("eight bytes"));
                let blocks = u32::from_be_bytes(data[16..20].try_into().expect("four bytes"));
                if blocks > self.unmap_max_blocks {
                    return Answer::check_condition([ILLEGAL_REQUEST, 0x26, 0x00]);
                }
                self.unmapped.borrow_mut().push((lba, blocks));
                Answer::took(data.len() as u64)
            }
            // WRITE SAME (16)
            (0x93, ..) => {
                let blocks = u32::from_be_bytes(cdb[10..14].try_into().expect("four bytes"));
                self.transferred.borrow_mut().push(blocks);
                Answer::took(data.len() as u64)
            }
            _ => Answer::took(data.len() as u64),
        }
    }
}

impl Answer {
    fn with(data: &[u8]) -> Answer {
        Answer {
            data: data.to_vec(),
            ..Answer::took(data.len() as u64)
        }
    }

    fn took(transfer_len: u64) -> Answer {
        Answer {
            sense: None,
            data: Vec::new(),
            transfer_len,
        }
    }

    fn check_condition(sense: [u8; 3]) -> Answer {
        Answer {
            sense: Some(sense),
            ..Answer::took(0)
        }
    }
}

fn disk_at(address: SocketAddr) -> IscsiConfig {
    IscsiConfig {
        address,
        target_name: "iqn.2026-11.example:foreign".into(),
        lun: 0,
        initiator_name: "iqn.2026-11.io.sanstone:initiator".into(),
        isid: Isid::random([1, 2, 3], 1),
        chap: None,
        header_digest: false,
        data_digest: false,
        connect_timeout: Duration::from_secs(60),
        request_timeout: Duration::from_secs(120),
        reconnect_timeout: Duration::from_secs(60),
    }
}

/// A connection of the target.
struct Connection {
    machine: TargetConnection,
    foreign: Rc<Foreign>,
    writes: BTreeMap<TaskId, (CommandRequest, Vec<u8>)>,
    reads: BTreeMap<TaskId, Vec<u8>>,
}

async fn serve(stream: TcpStream, foreign: Rc<Foreign>) {
    let mut reader = FramedReader::new(stream.clone(), 1 << 20);
    let mut connection = Connection {
        machine: TargetConnection::new(TargetConfig::default()),
        foreign,
        writes: BTreeMap::new(),
        reads: BTreeMap::new(),
    };
    while reader.fill(iscsi::pdu::BHS_LEN).await.unwrap_or(false) {
        let limits = connection.machine.frame_limits();
        let pdu = frame(reader.bytes(), &limits).expect("a right PDU");
        let pdu = pdu.expect("its header is at hand");
        if !reader.fill(pdu.total_len).await.unwrap_or(false) {
            return;
        }
        let bytes = reader.bytes();
        let bhs = bytes.first_chunk().expect("48 bytes are at hand");
        let (ahs, data) = (&bytes[pdu.ahs()], &bytes[pdu.data()]);
        connection.receive(bhs, ahs, data);
        reader.consume(pdu.total_len);
        if stream.send_all(connection.replies()).await.0.is_err() {
            return;
        }
    }
}

impl Connection {
    fn receive(&mut self, bhs: &[u8; 48], ahs: &[u8], data: &[u8]) {
        self.machine.receive(0, bhs, ahs, RxData::Inline(data));
        while let Some(event) = self.machine.poll_event() {
            match event {
                TargetEvent::LoginRequest(_) => {
                    self.machine.login_continue(1).expect("a login is open");
                }
                TargetEvent::SessionRequest(_) => {
                    self.machine.login_accept(1).expect("a login is open");
                }
                TargetEvent::Command(command) => {
                    let (task, write_len) = (command.task, command.write_len);
                    let mut written = data[..command.immediate_len as usize].to_vec();
                    written.resize(write_len as usize, 0);
                    self.writes.insert(task, (command, written));
                    match write_len {
                        0 => self.execute(task),
                        _ => self.machine.solicit(task, write_len).expect("it is open"),
                    }
                }
                TargetEvent::DataOut { task, offset, len } => {
                    let place = offset as usize..(offset + len) as usize;
                    let (_, written) = self.writes.get_mut(&task).expect("it is open");
                    written[place].copy_from_slice(&data[..len as usize]);
                }
                TargetEvent::DataComplete { task } => self.execute(task),
                TargetEvent::Logout { .. } => {
                    self.machine.logout_response(0).expect("it was asked for");
                }
                _ => {}
            }
        }
    }

    fn execute(&mut self, task: TaskId) {
        const CHECK_CONDITION: u8 = 0x02;
        let (command, written) = self.writes.remove(&task).expect("it is open");
        let answer = self.foreign.execute(&command.cdb, &written);
        let mut fixed = [0; 18];
        let (status, sense) = match answer.sense {
            None => (0, &[][..]),
            Some([key, asc, ascq]) => {
                (fixed[0], fixed[2], fixed[7]) = (0x70, key, 10);
                (fixed[12], fixed[13]) = (asc, ascq);
                (CHECK_CONDITION, &fixed[..])
            }
        };
        let outcome = Outcome {
            status,
            sense,
            transfer_len: answer.transfer_len,
        };
        let len = answer.data.len() as u32;
        self.reads.insert(task, answer.data);
        self.machine
            .data_in(task, len, Some(outcome))
            .expect("it is open");
    }

    /// What is to be sent.
    fn replies(&mut self) -> Gather {
        let mut gather = Gather::new();
        while let Some(pdu) = self.machine.poll_transmit() {
            gather.push_bytes(&pdu.header);
            match &pdu.data {
                TransmitData::None => {}
                TransmitData::Inline(bytes) => gather.push_bytes(bytes),
                TransmitData::Task { task, offset, len } => {
                    let place = *offset as usize..(*offset + *len) as usize;
                    gather.push_bytes(&self.reads[task][place]);
                }
            }
            gather.push_bytes(&[0; 3][..pdu.padding()]);
        }
        gather
    }
}
