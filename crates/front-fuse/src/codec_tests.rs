//! Requests as the kernel sends them, and how they are handled.

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    HEAD_BYTES, Malformed, Operation, Reply, Request, Session, Step, Work,
    abi::{
        AttrOut, FallocateIn, InHeader, InitIn, InitOut, OutHeader, ReadIn, SetattrIn, WriteIn,
        fattr, init, opcode,
    },
};

const LEN_BYTES: u64 = 1 << 20;
const SESSION: Session = Session {
    read_only: false,
    takes_discards: true,
    io_max_bytes: 64 << 10,
    max_background: 256,
    mode: 0o640,
    uid: 1,
    gid: 2,
    time_s: 3,
};

/// A request with this body, as bytes.
pub(crate) fn request(opcode: u32, unique: u64, body: &[u8]) -> Vec<u8> {
    let header = InHeader {
        len: (size_of::<InHeader>() + body.len()) as u32,
        opcode,
        unique,
        nodeid: 1,
        ..InHeader::default()
    };
    [header.as_bytes(), body].concat()
}

/// INIT as Linux 6.18 sends it, with these flags.
pub(crate) fn greeting(unique: u64, flags: u64) -> Vec<u8> {
    let fixed = InitIn {
        major: 7,
        minor: 45,
        max_readahead: 1 << 17,
        flags: flags as u32,
    };
    let flags2 = (flags >> 32) as u32;
    let body = [fixed.as_bytes(), flags2.as_bytes(), &[0; 44]].concat();
    request(opcode::INIT, unique, &body)
}

pub(crate) fn write(unique: u64, at: u64, data: &[u8], flags: u32) -> Vec<u8> {
    let fields = WriteIn {
        offset: at,
        size: data.len() as u32,
        flags,
        ..WriteIn::default()
    };
    request(opcode::WRITE, unique, &[fields.as_bytes(), data].concat())
}

pub(crate) fn read(unique: u64, at: u64, len: u32) -> Vec<u8> {
    let fields = ReadIn {
        offset: at,
        size: len,
        ..ReadIn::default()
    };
    request(opcode::READ, unique, fields.as_bytes())
}

pub(crate) fn allocate(unique: u64, mode: u32, at: u64, len: u64) -> Vec<u8> {
    let fields = FallocateIn {
        offset: at,
        length: len,
        mode,
        ..FallocateIn::default()
    };
    request(opcode::FALLOCATE, unique, fields.as_bytes())
}

/// Parses a request as it comes from the device.
fn parse(bytes: &[u8]) -> Result<Operation, Malformed> {
    let (head, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES));
    let request = Request::parse(head, rest)?;
    assert_eq!(request.unique, 9);
    Ok(request.operation)
}

fn step(bytes: &[u8]) -> Step {
    SESSION.step(&parse(bytes).expect("a request"), LEN_BYTES)
}

fn refused(errno: Errno) -> Step {
    Step::Reply(Reply::Error(errno))
}

#[test]
fn what_is_cut_off_or_too_long_is_no_request() {
    let whole = [
        greeting(9, init::INIT_EXT),
        write(9, 0, b"data", 0),
        read(9, 0, 1),
        allocate(9, 3, 0, 1),
        request(opcode::SETATTR, 9, SetattrIn::default().as_bytes()),
    ];
    for bytes in whole {
        parse(&bytes).expect("it is whole");
        let longer = [&bytes[..], b"x"].concat();
        for bytes in (0..bytes.len())
            .map(|len| &bytes[..len])
            .chain([&longer[..]])
        {
            let malformed = parse(bytes).expect_err("its length is another one");
            let has_header = bytes.len() >= size_of::<InHeader>();
            assert_eq!(malformed.unique, has_header.then_some(9));
        }
        // Truncated, even if the header has the right length.
        let cut = request(bytes[4].into(), 9, &bytes[40..44]);
        parse(&cut).expect_err("it is too short for its opcode");
    }
}

#[test]
fn the_data_of_a_write_are_all_that_follow_its_fields() {
    let bytes = write(9, 5, b"data", 0);
    assert_eq!(bytes.len(), HEAD_BYTES + 4);
    let mut lies = bytes.clone();
    lies[40 + 16] = 3; // `size`
    parse(&lies).expect_err("it has four bytes");
    // Data that begin in the first buffer would not be where the parser expects them.
    Request::parse(&bytes[..HEAD_BYTES + 1], &bytes[HEAD_BYTES + 1..]).expect_err("cut elsewhere");
    let durable = write(9, 5, b"data", libc_o_sync());
    for (bytes, durable) in [(bytes, false), (durable, true)] {
        let work = Work::Write {
            at: 5,
            len: 4,
            durable,
        };
        assert_eq!(step(&bytes), Step::Work(work));
    }
}

/// `O_SYNC`, as if a program had opened the file with it.
fn libc_o_sync() -> u32 {
    rustix::fs::OFlags::SYNC.bits()
}

#[test]
fn of_what_the_kernel_offers_only_what_we_use_is_taken() {
    const WRITEBACK_CACHE: u64 = 1 << 16;
    let Step::Reply(reply) = step(&greeting(9, u64::MAX)) else {
        panic!("it is answered at once");
    };
    let bytes = reply.to_bytes(9);
    let (header, body) = bytes.split_at(size_of::<OutHeader>());
    let header = OutHeader::read_from_bytes(header).expect("a header");
    assert_eq!((header.len, header.error, header.unique), (80, 0, 9));
    let body = InitOut::read_from_bytes(body).expect("what INIT is answered with");
    let flags = u64::from(body.flags) | u64::from(body.flags2) << 32;
    assert_eq!(flags & WRITEBACK_CACHE, 0);
    let used = init::ASYNC_DIO | init::MAX_PAGES | init::DIRECT_IO_ALLOW_MMAP;
    assert_eq!(flags & used, used);
    assert_eq!(
        (body.major, body.max_write, body.max_pages),
        (7, 64 << 10, 16)
    );
    let Step::Reply(Reply::Init { flags, .. }) = step(&greeting(9, init::BIG_WRITES)) else {
        panic!("it is taken");
    };
    assert_eq!(flags, init::BIG_WRITES, "the kernel has no more");
    let mut old = greeting(9, 0);
    old[44] = 26; // `minor`
    assert_eq!(step(&old), refused(Errno::PROTO));
}

#[test]
fn a_disk_ends_where_it_ends() {
    let end = LEN_BYTES;
    let data = |len| Step::Work(Work::Read { at: end - 10, len });
    assert_eq!(step(&read(9, end - 10, 10)), data(10));
    assert_eq!(step(&read(9, end - 10, 4096)), data(10));
    for at in [end, end + 1, u64::MAX] {
        assert_eq!(step(&read(9, at, 4096)), Step::Reply(Reply::Data(0)));
        assert_eq!(step(&write(9, at, b"data", 0)), refused(Errno::NOSPC));
    }
    let Step::Work(Work::Write { len, .. }) = step(&write(9, end - 3, b"data", 0)) else {
        panic!("its beginning is written");
    };
    assert_eq!(len, 3);
    // No transfer is longer than the limit told to the kernel.
    let Step::Work(Work::Read { len, .. }) = step(&read(9, 0, u32::MAX)) else {
        panic!("its beginning is read");
    };
    assert_eq!(len, SESSION.io_max_bytes);
}

#[test]
fn a_hole_reads_as_zeroes_and_nothing_else_changes_where_space_is() {
    const KEEP: u32 = 1;
    const PUNCH: u32 = 2 | KEEP;
    const ZERO: u32 = 0x10;
    let zeroed = |len, may_discard| {
        Step::Work(Work::Zero {
            at: 512,
            len,
            may_discard,
        })
    };
    assert_eq!(step(&allocate(9, PUNCH, 512, 1)), zeroed(1, true));
    assert_eq!(step(&allocate(9, ZERO, 512, 1)), zeroed(1, false));
    let rest = LEN_BYTES - 512;
    let beyond = step(&allocate(9, ZERO | KEEP, 512, u64::MAX));
    assert_eq!(beyond, zeroed(rest, false));
    let longer = step(&allocate(9, ZERO, 512, rest + 1));
    assert_eq!(longer, refused(Errno::NOSPC));
    let nothing = step(&allocate(9, PUNCH, LEN_BYTES, 1));
    assert_eq!(nothing, Step::Reply(Reply::Done));
    for mode in [0, KEEP, 0x08, 0x20, 0x40, 0x80, ZERO | PUNCH] {
        let other = step(&allocate(9, mode, 0, 512));
        assert_eq!(other, refused(Errno::OPNOTSUPP), "{mode:#x}");
    }
    let thick = Session {
        takes_discards: false,
        ..SESSION
    };
    let punch = parse(&allocate(9, PUNCH, 0, 512)).expect("a request");
    assert_eq!(thick.step(&punch, LEN_BYTES), refused(Errno::OPNOTSUPP));
}

#[test]
fn what_is_read_only_is_not_changed() {
    let session = Session {
        read_only: true,
        ..SESSION
    };
    for bytes in [write(9, 0, b"data", 0), allocate(9, 3, 0, 512)] {
        let operation = parse(&bytes).expect("a request");
        assert_eq!(session.step(&operation, LEN_BYTES), refused(Errno::ROFS));
    }
    let Step::Reply(Reply::Attributes(attributes)) =
        session.step(&Operation::GetAttributes, LEN_BYTES)
    else {
        panic!("it is answered at once");
    };
    assert_eq!(attributes.mode, 0o440);
}

#[test]
fn a_disk_keeps_its_length_and_its_owner() {
    let set = |valid, size| {
        let fields = SetattrIn {
            valid,
            size,
            ..SetattrIn::default()
        };
        step(&request(opcode::SETATTR, 9, fields.as_bytes()))
    };
    let unchanged = step(&request(opcode::GETATTR, 9, &[0; 16]));
    // As with `O_TRUNC` on a block device.
    assert_eq!(set(fattr::SIZE, 0), unchanged);
    assert_eq!(set(fattr::SIZE, LEN_BYTES), unchanged);
    assert_eq!(set(fattr::SIZE, LEN_BYTES + 512), refused(Errno::INVAL));
    for owner in [fattr::MODE, fattr::UID, fattr::GID] {
        assert_eq!(set(owner, 0), refused(Errno::PERM));
    }
    let Step::Reply(reply) = unchanged else {
        panic!("it is answered at once");
    };
    let bytes = reply.to_bytes(9);
    let out = AttrOut::read_from_bytes(&bytes[16..]).expect("attributes");
    let attr = out.attr;
    assert_eq!((attr.size, attr.mode), (LEN_BYTES, 0o100_640));
    assert_eq!((attr.uid, attr.gid, attr.mtime), (1, 2, 3));
}

#[test]
fn what_a_file_has_no_need_of_is_not_implemented() {
    const FLUSH: u32 = 25;
    const INTERRUPT: u32 = 36;
    const FUTURE: u32 = 4711;
    for opcode in [FLUSH, INTERRUPT, FUTURE] {
        let bytes = request(opcode, 9, &[0; 24]);
        assert_eq!(step(&bytes), refused(Errno::NOSYS));
    }
    let forget = request(opcode::FORGET, 9, &[0; 8]);
    assert_eq!(step(&forget), Step::Nothing);
}
