//! A client that sends single PDUs and options, and costs little itself. It sends nothing by itself; between two calls
//! the connection is quiet.

use std::{cell::Cell, net::SocketAddr};

use engine::{
    Gather,
    net::{FramedReader, TcpStream},
};

/// The target of each session here.
pub(crate) const IQN: &str = "iqn.2026-11.io.sanstone:charge";
/// SIMPLE, ORDERED and HEAD OF QUEUE (RFC 7143 §11.3.1).
pub(crate) const ATTRIBUTES: [u8; 3] = [1, 2, 3];
/// A tag that names nothing.
const RESERVED: u32 = u32::MAX;

const SCSI_COMMAND: u8 = 0x01;
const TASK_MANAGEMENT: u8 = 0x02;
const LOGIN: u8 = 0x03;
const TEXT: u8 = 0x04;
const DATA_OUT: u8 = 0x05;
const LOGOUT: u8 = 0x06;
const IMMEDIATE: u8 = 0x40;
const FINAL: u8 = 0x80;
const R2T: u8 = 0x31;
const DATA_IN: u8 = 0x25;
const NOP_IN: u8 = 0x20;

/// The longest data segment sent, and the first burst, in bytes.
const SEGMENT_BYTES: usize = 64 << 10;

thread_local! {
    static MOVED_BYTES: Cell<u64> = const { Cell::new(0) };
}

/// What clients have sent and received so far, in bytes: they and the simulated network work for that, too.
pub(crate) fn moved_bytes() -> u64 {
    MOVED_BYTES.get()
}

fn count_moved(bytes: usize) {
    MOVED_BYTES.set(MOVED_BYTES.get() + bytes as u64);
}

/// One connection.
pub(crate) struct Wire {
    stream: TcpStream,
    reader: FramedReader,
    cmd_sn: u32,
    exp_stat_sn: u32,
    tag: u32,
}

/// A PDU as it arrived.
pub(crate) struct Pdu {
    pub(crate) header: [u8; 48],
    pub(crate) data: Vec<u8>,
}

impl Pdu {
    pub(crate) fn opcode(&self) -> u8 {
        self.header[0] & 0x3f
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.header[at..at + 4].try_into().expect("four bytes"))
    }
}

impl Wire {
    /// Connects, and sends nothing.
    pub(crate) async fn connect(addr: SocketAddr) -> Wire {
        let stream = TcpStream::connect(addr).await.expect("it listens");
        Wire {
            reader: FramedReader::new(stream.clone(), 512 << 10),
            stream,
            cmd_sn: 1,
            exp_stat_sn: 0,
            tag: 0,
        }
    }

    /// Logs in, to discover or to [`IQN`]; `more` keys are sent along.
    pub(crate) async fn login(addr: SocketAddr, name: &str, discovers: bool, more: &[u8]) -> Wire {
        let mut wire = Wire::connect(addr).await;
        let pdu = wire.send_login(name, discovers, more).await;
        assert_eq!(pdu.header[36..38], [0, 0], "the login succeeds");
        wire
    }

    /// Sends a Login Request and returns the response.
    pub(crate) async fn send_login(&mut self, name: &str, discovers: bool, more: &[u8]) -> Pdu {
        let kind = match discovers {
            true => "SessionType=Discovery\0".to_owned(),
            false => format!("SessionType=Normal\0TargetName={IQN}\0"),
        };
        let mut text = format!(
            "InitiatorName={name}\0{kind}InitialR2T=No\0ImmediateData=Yes\0FirstBurstLength=65536\0\
             MaxRecvDataSegmentLength=262144\0"
        )
        .into_bytes();
        text.extend(more);
        let mut header = self.header(LOGIN | IMMEDIATE, 0x87);
        header[8] = 0x80;
        self.send(header, &text).await;
        self.receive().await.expect("a login response")
    }

    fn header(&mut self, opcode: u8, flags: u8) -> [u8; 48] {
        let mut header = [0; 48];
        (header[0], header[1]) = (opcode, flags);
        self.tag += 1;
        header[16..20].copy_from_slice(&self.tag.to_be_bytes());
        header[20..24].copy_from_slice(&RESERVED.to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        header[28..32].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
        if opcode & IMMEDIATE == 0 && opcode != DATA_OUT {
            self.cmd_sn += 1;
        }
        header
    }

    async fn send(&self, mut header: [u8; 48], data: &[u8]) {
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        let mut gather = Gather::new();
        count_moved(data.len());
        let padding = data.len().next_multiple_of(4) - data.len();
        gather.push_bytes(&[&header, data, &[0; 3][..padding]].concat());
        self.stream.send_all(gather).await.0.expect("it is taken");
    }

    /// Sends bytes as they are.
    pub(crate) async fn send_bytes(&self, bytes: &[u8]) {
        let mut gather = Gather::new();
        count_moved(bytes.len());
        gather.push_bytes(bytes);
        self.stream.send_all(gather).await.0.expect("it is taken");
    }

    /// Receives as many bytes; `None` if the server has closed the connection.
    pub(crate) async fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        count_moved(len);
        self.reader.reserve(len.max(1));
        if !matches!(self.reader.fill(len).await, Ok(true)) {
            return None;
        }
        let taken = self.reader.bytes()[..len].to_vec();
        self.reader.consume(len);
        Some(taken)
    }

    /// The next PDU; `None` if the server has closed the connection.
    pub(crate) async fn receive(&mut self) -> Option<Pdu> {
        let header: [u8; 48] = self.take(48).await?.try_into().expect("48 bytes");
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = self.take(len.next_multiple_of(4)).await?;
        data.truncate(len);
        let pdu = Pdu { header, data };
        let has_status = match pdu.opcode() {
            DATA_IN => header[1] & 1 != 0,
            R2T => false,
            NOP_IN => pdu.word(16) != RESERVED,
            _ => true,
        };
        if has_status {
            self.exp_stat_sn = pdu.word(24).wrapping_add(1);
        }
        Some(pdu)
    }

    /// Sends a command and does not wait; returns its tag.
    pub(crate) async fn begin(
        &mut self,
        (lun, attribute): (u8, u8),
        cdb: &[u8],
        (data, read_len): (&[u8], u32),
    ) -> u32 {
        let first = &data[..data.len().min(SEGMENT_BYTES)];
        let writes = if data.is_empty() { 0 } else { 0x20 };
        let reads = if read_len > 0 { 0x40 } else { 0 };
        let mut header = self.header(SCSI_COMMAND, FINAL | reads | writes | attribute);
        header[9] = lun;
        let expected = read_len.max(data.len() as u32);
        header[20..24].copy_from_slice(&expected.to_be_bytes());
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        self.send(header, first).await;
        self.tag
    }

    /// Sends a command and waits for its end; returns its status and its data-in.
    pub(crate) async fn command(
        &mut self,
        at: (u8, u8),
        cdb: &[u8],
        transfer: (&[u8], u32),
    ) -> (u8, Vec<u8>) {
        let tag = self.begin(at, cdb, transfer).await;
        let mut read = Vec::new();
        loop {
            let pdu = self.receive().await.expect("it is served");
            if pdu.word(16) != tag {
                continue; // an older command, which ends meanwhile
            }
            match pdu.opcode() {
                R2T => self.answer_r2t(&pdu, at.0, transfer.0).await,
                DATA_IN => {
                    read.extend(&pdu.data);
                    if pdu.header[1] & 1 != 0 {
                        return (pdu.header[3], read);
                    }
                }
                _ => return (pdu.header[3], read),
            }
        }
    }

    async fn answer_r2t(&mut self, r2t: &Pdu, lun: u8, data: &[u8]) {
        let (offset, len) = (r2t.word(40) as usize, r2t.word(44) as usize);
        let wanted = &data[offset..offset + len];
        let count = wanted.len().div_ceil(SEGMENT_BYTES);
        for (n, piece) in wanted.chunks(SEGMENT_BYTES).enumerate() {
            let mut header = [0; 48];
            header[0] = DATA_OUT;
            header[1] = if n + 1 == count { FINAL } else { 0 };
            header[9] = lun;
            header[16..24].copy_from_slice(&r2t.header[16..24]);
            header[28..32].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
            header[36..40].copy_from_slice(&(n as u32).to_be_bytes());
            let at = (offset + n * SEGMENT_BYTES) as u32;
            header[40..44].copy_from_slice(&at.to_be_bytes());
            self.send(header, piece).await;
        }
    }

    /// Sends a task management function and waits for the response, which it returns.
    pub(crate) async fn function(&mut self, function: u8, lun: u8, referenced: u32) -> u8 {
        let mut header = self.header(TASK_MANAGEMENT | IMMEDIATE, FINAL | function);
        header[9] = lun;
        header[20..24].copy_from_slice(&referenced.to_be_bytes());
        self.send(header, &[]).await;
        self.until(0x22).await.header[2]
    }

    /// Sends a PDU of this kind with as much data, and waits for any answer; false if the connection is over.
    pub(crate) async fn raw(&mut self, opcode: u8, len: usize) -> bool {
        let header = self.header(opcode, FINAL);
        self.send(header, &vec![0; len]).await;
        self.receive().await.is_some()
    }

    /// Waits for a PDU with this opcode.
    async fn until(&mut self, opcode: u8) -> Pdu {
        loop {
            let pdu = self.receive().await.expect("it is served");
            if pdu.opcode() == opcode {
                return pdu;
            }
        }
    }

    /// Sends text and receives the answer, however many pieces it has; false if the connection is over.
    pub(crate) async fn text(&mut self, text: &[u8]) -> bool {
        let mut header = self.header(TEXT, FINAL);
        self.send(header, text).await;
        loop {
            let Some(pdu) = self.receive().await else {
                return false;
            };
            if pdu.opcode() != 0x24 || pdu.header[1] & FINAL != 0 {
                return pdu.opcode() == 0x24;
            }
            let tag = header[16..20].to_vec();
            header = self.header(TEXT, FINAL);
            header[16..20].copy_from_slice(&tag);
            header[20..24].copy_from_slice(&pdu.header[20..24]);
            self.send(header, &[]).await;
        }
    }

    /// Sends a NOP-Out that wants its data back.
    pub(crate) async fn ping(&mut self, data: &[u8]) {
        let header = self.header(IMMEDIATE, FINAL);
        self.send(header, data).await;
        self.until(NOP_IN).await;
    }

    /// Logs out.
    pub(crate) async fn logout(&mut self) {
        let header = self.header(LOGOUT, FINAL);
        self.send(header, &[]).await;
        self.until(0x26).await;
    }
}
