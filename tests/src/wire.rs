//! A minimal initiator that shares no code with the product, for tests that need control over single PDUs, valid or
//! not. RFC 7143 §11 has the layouts. Digests are off unless asked for, a session has one connection, and callers may
//! corrupt sequence numbers.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::ops::Range;
use std::time::Duration;

/// Opcodes of RFC 7143 §11.2.1.2 that tests look at.
pub mod opcode {
    /// NOP-In (§11.19).
    pub const NOP_IN: u8 = 0x20;
    /// SCSI Response (§11.4).
    pub const SCSI_RESPONSE: u8 = 0x21;
    /// Task Management Function Response (§11.6).
    pub const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    /// Login Response (§11.13).
    pub const LOGIN_RESPONSE: u8 = 0x23;
    /// SCSI Data-In (§11.7).
    pub const DATA_IN: u8 = 0x25;
    /// Logout Response (§11.15).
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    /// Ready To Transfer (§11.8).
    pub const R2T: u8 = 0x31;
    /// Asynchronous Message (§11.9).
    pub const ASYNC_MESSAGE: u8 = 0x32;
}

/// A PDU as it arrived.
#[derive(Clone, Debug)]
pub struct Pdu {
    /// The basic header segment.
    pub header: [u8; 48],
    /// The data segment without its padding.
    pub data: Vec<u8>,
}

impl Pdu {
    /// The opcode without its flags.
    pub fn opcode(&self) -> u8 {
        self.header[0] & 0x3f
    }

    /// The initiator task tag.
    pub fn task(&self) -> u32 {
        self.word(16)
    }

    /// The SCSI status of a SCSI Response, or of a Data-In that carries one.
    pub fn status(&self) -> u8 {
        self.header[3]
    }

    /// A four-byte field at this offset of the header.
    pub fn word(&self, offset: usize) -> u32 {
        u32::from_be_bytes(
            self.header[offset..offset + 4]
                .try_into()
                .expect("four bytes"),
        )
    }
}

/// A logged-in session.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    lun: u8,
    /// The task attribute of the commands it sends: 1 SIMPLE, 2 ORDERED, 3 HEAD OF QUEUE.
    pub attribute: u8,
    next_task: u32,
    header_digest: bool,
    data_digest: bool,
    /// Whether it sends wrong data digests.
    pub has_wrong_data_digests: bool,
    /// The keys that the target answered at login, each `KEY=value`.
    pub answers: Vec<String>,
    /// The target's name for the session.
    pub tsih: u16,
    /// CmdSN of the next command.
    pub cmd_sn: u32,
    /// ExpStatSN of the next PDU.
    pub exp_stat_sn: u32,
    /// The last MaxCmdSN that the target gave.
    pub max_cmd_sn: u32,
}

impl Session {
    /// Connects to `HOST:PORT` and logs in with the operational keys given, each `KEY=value`. `number` distinguishes
    /// initiators: it goes into the name and the ISID.
    ///
    /// # Errors
    /// Of the socket, or [`io::ErrorKind::ConnectionRefused`] with the status if login is refused.
    pub fn login(
        address: &str,
        target: &str,
        lun: u8,
        number: u16,
        keys: &[&str],
    ) -> io::Result<Session> {
        let stream = TcpStream::connect(address)?;
        Session::login_with(stream, target, lun, number, login_header(number), keys)
    }

    /// The same on an existing connection.
    ///
    /// # Errors
    /// As above.
    pub fn login_on(
        stream: TcpStream,
        target: &str,
        lun: u8,
        number: u16,
        keys: &[&str],
    ) -> io::Result<Session> {
        Session::login_with(stream, target, lun, number, login_header(number), keys)
    }

    /// The same with the caller's own Login Request header.
    ///
    /// # Errors
    /// Those of [`Session::login`]; after a redirection they name the TargetAddress.
    pub fn login_with(
        stream: TcpStream,
        target: &str,
        lun: u8,
        number: u16,
        mut header: [u8; 48],
        keys: &[&str],
    ) -> io::Result<Session> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut session = Session {
            stream,
            lun,
            attribute: 1,
            next_task: 1,
            header_digest: false,
            data_digest: false,
            has_wrong_data_digests: false,
            answers: Vec::new(),
            tsih: 0,
            cmd_sn: 1,
            exp_stat_sn: 0,
            max_cmd_sn: 1,
        };
        let name = format!("InitiatorName=iqn.2026-11.io.sanstone:wire-{number}");
        let to = format!("TargetName={target}");
        let mut text = Vec::new();
        let fixed = ["SessionType=Normal", "HeaderDigest=None", "DataDigest=None"];
        let is_given = |key: &str| {
            let (name, _) = key.split_once('=').unwrap_or((key, ""));
            keys.iter()
                .any(|given| given.split_once('=').is_some_and(|(own, _)| own == name))
        };
        let fixed = fixed.into_iter().filter(|key| !is_given(key));
        for key in [&*name, &*to]
            .into_iter()
            .chain(fixed)
            .chain(keys.iter().copied())
        {
            text.extend_from_slice(key.as_bytes());
            text.push(0);
        }
        loop {
            session.send(&mut header, &text)?;
            let reply = session.receive()?;
            if reply.opcode() != opcode::LOGIN_RESPONSE || reply.header[36] != 0 {
                let (class, detail) = (reply.header[36], reply.header[37]);
                let text = String::from_utf8_lossy(&reply.data).replace('\0', " ");
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionRefused,
                    format!("login refused: status {class:#04x} {detail:#04x} {text}"),
                ));
            }
            let text_of_reply = String::from_utf8_lossy(&reply.data).into_owned();
            let pairs = text_of_reply.split_terminator('\0');
            session.answers.extend(pairs.map(str::to_owned));
            if reply.header[1] & 0x83 == 0x83 {
                session.tsih = u16::from_be_bytes([reply.header[14], reply.header[15]]);
                session.header_digest = session.answer("HeaderDigest") == Some("CRC32C");
                session.data_digest = session.answer("DataDigest") == Some("CRC32C");
                return Ok(session);
            }
            // The target wants another round before the full feature phase.
            text.clear();
            header[28..32].copy_from_slice(&session.exp_stat_sn.to_be_bytes());
        }
    }

    /// The target's answer for this key at login.
    pub fn answer(&self, key: &str) -> Option<&str> {
        let pairs = self.answers.iter().filter_map(|pair| pair.split_once('='));
        pairs
            .filter(|(name, _)| *name == key)
            .map(|(_, value)| value)
            .next()
    }

    /// Sends a SCSI command and returns its task tag. `expected_bytes` is the expected data
    /// transfer length, which the CDB's own length need not match; `immediate` goes with it.
    ///
    /// # Errors
    /// Of the socket.
    pub fn command(
        &mut self,
        cdb: &[u8],
        direction: Direction,
        expected_bytes: u32,
        immediate: &[u8],
    ) -> io::Result<u32> {
        self.command_and_data(cdb, direction, expected_bytes, immediate, true)
    }

    /// The same; unless the immediate data is the `last`, unsolicited Data-Out follows.
    ///
    /// # Errors
    /// Of the socket.
    pub fn command_and_data(
        &mut self,
        cdb: &[u8],
        direction: Direction,
        expected_bytes: u32,
        immediate: &[u8],
        last: bool,
    ) -> io::Result<u32> {
        let task = self.next_task;
        self.next_task += 1;
        let mut header = self.command_header(task, cdb, direction, expected_bytes, last);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.send(&mut header, immediate)?;
        Ok(task)
    }

    /// Sends a command without data-out that takes no place in the window; returns its task tag.
    ///
    /// # Errors
    /// Of the socket.
    pub fn immediate_command(
        &mut self,
        cdb: &[u8],
        direction: Direction,
        expected_bytes: u32,
    ) -> io::Result<u32> {
        let task = self.next_task;
        self.next_task += 1;
        let mut header = self.command_header(task, cdb, direction, expected_bytes, true);
        header[0] |= 0x40;
        self.send(&mut header, &[])?;
        Ok(task)
    }

    fn command_header(
        &self,
        task: u32,
        cdb: &[u8],
        direction: Direction,
        expected_bytes: u32,
        last: bool,
    ) -> [u8; 48] {
        let mut header = [0; 48];
        header[0] = 0x01;
        header[1] = u8::from(last) << 7 | direction as u8 | self.attribute;
        header[9] = self.lun;
        header[16..20].copy_from_slice(&task.to_be_bytes());
        header[20..24].copy_from_slice(&expected_bytes.to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        header[28..32].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        header
    }

    /// Whether the target's window has room for another command.
    pub fn may_send(&self) -> bool {
        self.cmd_sn.wrapping_sub(self.max_cmd_sn) as i32 <= 0
    }

    /// Sends a task management function (RFC 7143 §11.5), concerning `referenced` if it is ABORT TASK, as an immediate
    /// request. Returns the task tag, which the response will carry.
    ///
    /// # Errors
    /// Of the socket.
    pub fn task_management(&mut self, function: u8, referenced: Option<u32>) -> io::Result<u32> {
        let task = self.next_task;
        self.next_task += 1;
        let mut header = [0; 48];
        header[0] = 0x42;
        header[1] = 0x80 | function;
        header[9] = self.lun;
        header[16..20].copy_from_slice(&task.to_be_bytes());
        header[20..24].copy_from_slice(&referenced.unwrap_or(u32::MAX).to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        header[28..32].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
        // RefCmdSN only matters if the referenced command has not arrived, and it has.
        header[32..36].copy_from_slice(&self.cmd_sn.to_be_bytes());
        self.send(&mut header, &[])?;
        Ok(task)
    }

    /// Receives until each of these tasks has its response: statuses (or a function's response
    /// header) with the Data-In before them, in the order of the tasks. Other PDUs are dropped.
    ///
    /// # Errors
    /// Of the socket.
    pub fn responses_to(&mut self, tasks: &[u32]) -> io::Result<Vec<(u8, Vec<u8>)>> {
        let mut read = vec![Vec::new(); tasks.len()];
        let mut statuses = vec![None; tasks.len()];
        while statuses.iter().any(Option::is_none) {
            let pdu = self.receive()?;
            let Some(index) = tasks.iter().position(|task| *task == pdu.task()) else {
                continue;
            };
            match pdu.opcode() {
                opcode::DATA_IN => {
                    let start = pdu.word(40) as usize;
                    let end = start + pdu.data.len();
                    let read = &mut read[index];
                    read.resize(read.len().max(end), 0);
                    read[start..end].copy_from_slice(&pdu.data);
                    if pdu.header[1] & 1 != 0 {
                        statuses[index] = Some(pdu.status());
                    }
                }
                opcode::TASK_MANAGEMENT_RESPONSE => statuses[index] = Some(pdu.header[2]),
                opcode::SCSI_RESPONSE => statuses[index] = Some(pdu.status()),
                _ => {}
            }
        }
        Ok(statuses.into_iter().flatten().zip(read).collect())
    }

    /// Executes a command, sending its data-out with it: returns its status and its data-in.
    ///
    /// # Errors
    /// Of the socket.
    pub fn execute(
        &mut self,
        cdb: &[u8],
        write: &[u8],
        read_bytes: u32,
    ) -> io::Result<(u8, Vec<u8>)> {
        let direction = match (write.len(), read_bytes) {
            (0, 0) => Direction::None,
            (0, _) => Direction::Read,
            _ => Direction::Write,
        };
        let expected = read_bytes.max(write.len() as u32);
        let task = self.command(cdb, direction, expected, write)?;
        let mut responses = self.responses_to(&[task])?;
        Ok(responses.remove(0))
    }

    /// Answers an R2T with all the data it asks for, in one Data-Out; `data` is that of the whole command.
    ///
    /// # Errors
    /// Of the socket.
    pub fn answer_r2t(&mut self, r2t: &Pdu, data: &[u8]) -> io::Result<()> {
        let (offset, length) = (r2t.word(40) as usize, r2t.word(44) as usize);
        self.data_out(
            r2t.task(),
            r2t.word(20),
            data,
            offset..offset + length,
            length,
        )
    }

    /// Sends this range of a command's data in one sequence of Data-Out PDUs, none longer than `segment_bytes`. The
    /// transfer tag is the R2T's, or all ones for unsolicited data.
    ///
    /// # Errors
    /// Of the socket.
    pub fn data_out(
        &mut self,
        task: u32,
        transfer_tag: u32,
        data: &[u8],
        range: Range<usize>,
        segment_bytes: usize,
    ) -> io::Result<()> {
        for (data_sn, start) in (0u32..).zip(range.clone().step_by(segment_bytes)) {
            let end = range.end.min(start + segment_bytes);
            let mut header = [0; 48];
            header[0] = 0x05;
            header[1] = u8::from(end == range.end) << 7;
            header[9] = self.lun;
            header[16..20].copy_from_slice(&task.to_be_bytes());
            header[20..24].copy_from_slice(&transfer_tag.to_be_bytes());
            header[28..32].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
            header[36..40].copy_from_slice(&data_sn.to_be_bytes());
            header[40..44].copy_from_slice(&(start as u32).to_be_bytes());
            self.send(&mut header, &data[start..end])?;
        }
        Ok(())
    }

    /// Sends a NOP-Out: with our task tag it asks for a NOP-In, with the target's transfer tag it answers one.
    ///
    /// # Errors
    /// Of the socket.
    pub fn nop_out(&mut self, task: u32, transfer_tag: u32) -> io::Result<()> {
        let mut header = [0; 48];
        header[0] = 0x40; // immediate
        header[1] = 0x80;
        header[9] = self.lun;
        header[16..20].copy_from_slice(&task.to_be_bytes());
        header[20..24].copy_from_slice(&transfer_tag.to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        header[28..32].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
        self.send(&mut header, &[])
    }

    /// Sends a Logout Request for the session and waits for its response.
    ///
    /// # Errors
    /// Of the socket.
    pub fn log_out(&mut self) -> io::Result<()> {
        let mut header = [0; 48];
        header[0] = 0x46; // immediate
        header[1] = 0x80; // close the session
        header[16..20].copy_from_slice(&self.next_task.to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        header[28..32].copy_from_slice(&self.exp_stat_sn.to_be_bytes());
        self.send(&mut header, &[])?;
        while self.receive()?.opcode() != opcode::LOGOUT_RESPONSE {}
        Ok(())
    }

    /// Waits for the next PDU and records its StatSN and MaxCmdSN.
    ///
    /// # Errors
    /// Of the socket; [`io::ErrorKind::UnexpectedEof`] once the target has closed it;
    /// [`io::ErrorKind::InvalidData`] for a wrong digest.
    pub fn receive(&mut self) -> io::Result<Pdu> {
        let mut header = [0; 48];
        self.stream.read_exact(&mut header)?;
        assert_eq!(header[4], 0, "no PDU of a target has additional headers");
        self.receive_digest(self.header_digest, &header)?;
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; length.next_multiple_of(4)];
        self.stream.read_exact(&mut data)?;
        self.receive_digest(self.data_digest && length > 0, &data)?;
        data.truncate(length);
        let pdu = Pdu { header, data };
        let has_status = match pdu.opcode() {
            opcode::R2T => false,
            // A NOP-In that the target sends as a ping carries the next StatSN without consuming it.
            opcode::NOP_IN => pdu.task() != u32::MAX,
            opcode::DATA_IN => pdu.header[1] & 1 != 0,
            _ => true,
        };
        if has_status {
            self.exp_stat_sn = pdu.word(24).wrapping_add(1);
        }
        self.max_cmd_sn = pdu.word(32);
        Ok(pdu)
    }

    /// Sends TEST UNIT READY until the unit attentions of a new nexus have been reported (SAM-5 5.14).
    ///
    /// # Errors
    /// Of the socket, or if the unit does not become ready.
    pub fn wait_until_ready(&mut self) -> io::Result<()> {
        for _ in 0..5 {
            self.command(&[0; 6], Direction::None, 0, &[])?;
            if self.receive()?.status() == 0 {
                return Ok(());
            }
        }
        Err(io::Error::other("TEST UNIT READY keeps failing"))
    }

    /// The socket, for protocol violations that the methods above do not allow.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    fn receive_digest(&mut self, is_there: bool, bytes: &[u8]) -> io::Result<()> {
        if !is_there {
            return Ok(());
        }
        let mut digest = [0; 4];
        self.stream.read_exact(&mut digest)?;
        match u32::from_le_bytes(digest) == crc32c(bytes) {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "a wrong digest")),
        }
    }

    fn send(&mut self, header: &mut [u8; 48], data: &[u8]) -> io::Result<()> {
        let mut pdu = with_digests(header, data, self.header_digest, self.data_digest);
        if self.has_wrong_data_digests && self.data_digest && !data.is_empty() {
            let last = pdu.len() - 1;
            pdu[last] ^= 1;
        }
        self.stream.write_all(&pdu)
    }
}

/// Whether an error says that the target has closed the connection.
pub fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Connects to a port of 127.0.0.1 from another loopback address.
///
/// # Errors
/// Of the socket.
pub fn connect_from(source: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
    let (stream, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
    let socket = socket_with(AddressFamily::INET, stream, flags, None)?;
    bind(&socket, &SocketAddrV4::new(source, 0))?;
    connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    Ok(TcpStream::from(socket))
}

/// Which way a command's data goes, as the flag bits of RFC 7143 §11.3.1.
#[derive(Clone, Copy, Debug)]
pub enum Direction {
    /// No data.
    None = 0,
    /// From target to initiator.
    Read = 0x40,
    /// From initiator to target.
    Write = 0x20,
}

/// WRITE (10) of SBC-3 5.32, in logical blocks.
pub fn write_10(lba: u32, blocks: u16) -> [u8; 10] {
    read_or_write_10(0x2a, lba, blocks)
}

/// READ (10) of SBC-3 5.11, in logical blocks.
pub fn read_10(lba: u32, blocks: u16) -> [u8; 10] {
    read_or_write_10(0x28, lba, blocks)
}

fn read_or_write_10(operation: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let (lba, blocks) = (lba.to_be_bytes(), blocks.to_be_bytes());
    [
        operation, 0, lba[0], lba[1], lba[2], lba[3], 0, blocks[0], blocks[1], 0,
    ]
}

/// A Login Request's header (RFC 7143 §11.12) from operational negotiation to full feature phase.
/// The length of the text is filled in when it is sent.
pub fn login_header(number: u16) -> [u8; 48] {
    let mut header = [0; 48];
    header[0] = 0x43;
    header[1] = 0x87;
    header[8] = 0x80; // ISID: a random type, told apart by its qualifier
    header[12..14].copy_from_slice(&number.to_be_bytes());
    header[27] = 1; // CmdSN
    header
}

/// Sends a header with its data segment's length filled in, the data and its padding.
///
/// # Errors
/// Of the socket.
pub fn send(stream: &mut TcpStream, header: &mut [u8; 48], data: &[u8]) -> io::Result<()> {
    stream.write_all(&with_digests(header, data, false, false))
}

/// A whole PDU: the header with its data segment's length filled in, the data, its padding, and the requested digests.
pub fn with_digests(
    header: &mut [u8; 48],
    data: &[u8],
    header_digest: bool,
    data_digest: bool,
) -> Vec<u8> {
    let length = u32::try_from(data.len())
        .expect("a data segment is below 16 MiB")
        .to_be_bytes();
    header[5..8].copy_from_slice(&length[1..]);
    let mut pdu = header.to_vec();
    if header_digest {
        pdu.extend_from_slice(&crc32c(header).to_le_bytes());
    }
    let start = pdu.len();
    pdu.extend_from_slice(data);
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    if data_digest && !data.is_empty() {
        let digest = crc32c(&pdu[start..]);
        pdu.extend_from_slice(&digest.to_le_bytes());
    }
    pdu
}

/// CRC32C (RFC 7143 §13.1), bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_digest_is_the_one_of_the_standards_example() {
        assert_eq!(
            super::crc32c(&[0; 32]).to_le_bytes(),
            [0xaa, 0x36, 0x91, 0x8a]
        );
    }
}
