//! Requests as the kernel sends them, and how they are handled.

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    FileProperties, FileTimes, FuseOperation, FuseReply, FuseRequest, FuseWork, HEAD_BYTES,
    Handling, Malformed, SetTime, SetTimes, Timestamp,
    abi::{
        AttrOut, FallocateIn, InHeader, InitIn, InitOut, OpenIn, OpenOut, OutHeader, ReadIn,
        SetattrIn, WriteIn, fattr, fopen, init, opcode,
    },
};

const LEN_BYTES: u64 = 1 << 20;
const SESSION: FileProperties = FileProperties {
    read_only: false,
    takes_discards: true,
    io_max_bytes: 64 << 10,
    max_background: 256,
    mode: 0o640,
    uid: 1,
    gid: 2,
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
fn parse(bytes: &[u8]) -> Result<FuseOperation, Malformed> {
    let (head, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES));
    let request = FuseRequest::parse(head, rest)?;
    assert_eq!(request.unique, 9);
    Ok(request.operation)
}

fn step(bytes: &[u8]) -> Handling {
    SESSION.step(&parse(bytes).expect("a request"), LEN_BYTES)
}

fn refused(errno: Errno) -> Handling {
    Handling::Reply(FuseReply::Error(errno))
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
    FuseRequest::parse(&bytes[..HEAD_BYTES + 1], &bytes[HEAD_BYTES + 1..])
        .expect_err("cut elsewhere");
    let durable = write(9, 5, b"data", libc_o_sync());
    for (bytes, durable) in [(bytes, false), (durable, true)] {
        let work = FuseWork::Write {
            at: 5,
            len: 4,
            durable,
        };
        assert_eq!(step(&bytes), Handling::Work(work));
    }
}

/// `O_SYNC`, as if a program had opened the file with it.
fn libc_o_sync() -> u32 {
    rustix::fs::OFlags::SYNC.bits()
}

#[test]
fn of_what_the_kernel_offers_only_what_we_use_is_taken() {
    const ATOMIC_O_TRUNC: u64 = 1 << 3;
    const WRITEBACK_CACHE: u64 = 1 << 16;
    let Handling::Reply(reply) = step(&greeting(9, u64::MAX)) else {
        panic!("it is answered at once");
    };
    let bytes = reply.to_bytes(9);
    let (header, body) = bytes.split_at(size_of::<OutHeader>());
    let header = OutHeader::read_from_bytes(header).expect("a header");
    assert_eq!((header.len, header.error, header.unique), (80, 0, 9));
    let body = InitOut::read_from_bytes(body).expect("what INIT is answered with");
    let flags = u64::from(body.flags) | u64::from(body.flags2) << 32;
    assert_eq!(flags & (ATOMIC_O_TRUNC | WRITEBACK_CACHE), 0);
    let used = init::ASYNC_DIO | init::MAX_PAGES | init::DIRECT_IO_ALLOW_MMAP;
    assert_eq!(flags & used, used);
    assert_eq!(
        (body.major, body.max_write, body.max_pages),
        (7, 64 << 10, 16)
    );
    let Handling::Reply(FuseReply::Init { flags, .. }) = step(&greeting(9, init::BIG_WRITES))
    else {
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
    let data = |len| Handling::Work(FuseWork::Read { at: end - 10, len });
    assert_eq!(step(&read(9, end - 10, 10)), data(10));
    assert_eq!(step(&read(9, end - 10, 4096)), data(10));
    for at in [end, end + 1, u64::MAX] {
        assert_eq!(
            step(&read(9, at, 4096)),
            Handling::Reply(FuseReply::Data(0))
        );
        assert_eq!(step(&write(9, at, b"data", 0)), refused(Errno::NOSPC));
    }
    let Handling::Work(FuseWork::Write { len, .. }) = step(&write(9, end - 3, b"data", 0)) else {
        panic!("its beginning is written");
    };
    assert_eq!(len, 3);
    // No transfer is longer than the limit told to the kernel.
    let Handling::Work(FuseWork::Read { len, .. }) = step(&read(9, 0, u32::MAX)) else {
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
        Handling::Work(FuseWork::Zero {
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
    assert_eq!(nothing, Handling::Reply(FuseReply::Done));
    for mode in [0, KEEP, 0x08, 0x20, 0x40, 0x80, ZERO | PUNCH] {
        let other = step(&allocate(9, mode, 0, 512));
        assert_eq!(other, refused(Errno::OPNOTSUPP), "{mode:#x}");
    }
    let thick = FileProperties {
        takes_discards: false,
        ..SESSION
    };
    let punch = parse(&allocate(9, PUNCH, 0, 512)).expect("a request");
    assert_eq!(thick.step(&punch, LEN_BYTES), refused(Errno::OPNOTSUPP));
}

#[test]
fn what_is_read_only_is_not_changed() {
    let session = FileProperties {
        read_only: true,
        ..SESSION
    };
    let touch = set(fattr::MTIME_NOW, |_| {});
    for bytes in [write(9, 0, b"data", 0), allocate(9, 3, 0, 512), touch] {
        let operation = parse(&bytes).expect("a request");
        assert_eq!(session.step(&operation, LEN_BYTES), refused(Errno::ROFS));
    }
    let FuseReply::Attributes(attributes) = session.attributes(LEN_BYTES, FileTimes::default())
    else {
        panic!("its attributes");
    };
    assert_eq!(attributes.mode, 0o440);
}

/// SETATTR of the attributes that `valid` names, to the values that `fill` gives them.
fn set(valid: u32, fill: impl FnOnce(&mut SetattrIn)) -> Vec<u8> {
    let mut fields = SetattrIn {
        valid,
        ..SetattrIn::default()
    };
    fill(&mut fields);
    request(opcode::SETATTR, 9, fields.as_bytes())
}

#[test]
fn a_disk_keeps_its_length_its_owner_and_its_permissions() {
    // Whoever has truncated a file relies on its being empty.
    for size in [0, LEN_BYTES - 1, LEN_BYTES + 512, u64::MAX] {
        let resized = step(&set(fattr::SIZE | fattr::FH, |fields| fields.size = size));
        assert_eq!(resized, refused(Errno::PERM), "{size}");
    }
    let open = |flags| {
        let fields = OpenIn {
            flags,
            ..OpenIn::default()
        };
        step(&request(opcode::OPEN, 9, fields.as_bytes()))
    };
    let truncating = rustix::fs::OFlags::TRUNC.bits();
    assert_eq!(open(truncating), refused(Errno::PERM));
    assert_eq!(open(0), Handling::Reply(FuseReply::Opened));
    let owned = [
        set(fattr::UID, |fields| fields.uid = 7),
        set(fattr::GID, |fields| fields.gid = 7),
        set(fattr::MODE, |fields| fields.mode = 0o100_644),
        set(fattr::MODE, |fields| fields.mode = 0o104_640),
        // All or none.
        set(fattr::MTIME_NOW | fattr::UID, |fields| fields.uid = 7),
        set(fattr::SIZE | fattr::MTIME, |_| {}),
    ];
    for bytes in owned {
        assert_eq!(step(&bytes), refused(Errno::PERM));
    }
    const FUTURE: u32 = 1 << 30;
    assert_eq!(step(&set(FUTURE, |_| {})), refused(Errno::OPNOTSUPP));
    // What it has already.
    let same = fattr::UID | fattr::GID | fattr::MODE | fattr::KILL_SUIDGID;
    let same = set(same, |fields| {
        (fields.uid, fields.gid, fields.mode) = (1, 2, 0o100_640);
    });
    assert_eq!(step(&same), Handling::Attributes(Some(SetTimes::default())));
}

#[test]
fn times_are_given_to_the_file_and_a_truncation_to_its_length_is_a_change() {
    let given = |bytes: &[u8]| match step(bytes) {
        Handling::Attributes(Some(times)) => times,
        other => panic!("{other:?}"),
    };
    let both = given(&set(fattr::ATIME | fattr::MTIME | fattr::CTIME, |fields| {
        (fields.atime, fields.atimensec) = (4, 5);
        (fields.mtime, fields.mtimensec) = (-6_i64 as u64, 999_999_999);
        fields.ctime = 8;
    }));
    assert_eq!(both.accessed, Some(SetTime::To(Timestamp::new(4, 5))));
    let modified = Timestamp::new(-6, 999_999_999);
    assert_eq!(both.modified, Some(SetTime::To(modified)));
    // As `touch` without a time: the kernel sends the current one as well.
    let now = given(&set(fattr::MTIME | fattr::MTIME_NOW, |_| {}));
    let expected = SetTimes {
        accessed: None,
        modified: Some(SetTime::Now),
    };
    assert_eq!(now, expected);
    let resized = given(&set(fattr::SIZE, |fields| fields.size = LEN_BYTES));
    assert_eq!(resized, expected);
    parse(&set(fattr::ATIME, |fields| {
        fields.atimensec = 1_000_000_000
    }))
    .expect_err("no such time");
}

#[test]
fn attributes_are_told_anew_each_time_and_nothing_is_kept_of_the_content() {
    assert_eq!(
        step(&request(opcode::GETATTR, 9, &[0; 16])),
        Handling::Attributes(None)
    );
    let times = FileTimes {
        accessed: Timestamp::new(-3, 1),
        modified: Timestamp::new(4, 5),
        changed: Timestamp::new(6, 7),
    };
    let bytes = SESSION.attributes(LEN_BYTES, times).to_bytes(9);
    let out = AttrOut::read_from_bytes(&bytes[16..]).expect("attributes");
    assert_eq!((out.attr_valid, out.attr_valid_nsec), (0, 0));
    let attr = out.attr;
    assert_eq!((attr.size, attr.mode), (LEN_BYTES, 0o100_640));
    assert_eq!((attr.uid, attr.gid), (1, 2));
    assert_eq!((attr.atime as i64, attr.atimensec), (-3, 1));
    assert_eq!((attr.mtime, attr.mtimensec), (4, 5));
    assert_eq!((attr.ctime, attr.ctimensec), (6, 7));
    let opened = FuseReply::Opened.to_bytes(9);
    let opened = OpenOut::read_from_bytes(&opened[16..]).expect("what OPEN is answered with");
    let flags = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
    assert_eq!(opened.open_flags, flags, "no KEEP_CACHE");
}

#[test]
fn what_a_file_has_no_need_of_is_not_implemented() {
    // Extended attributes, FLUSH, locks, ACCESS, INTERRUPT, BMAP, IOCTL, POLL, LSEEK, COPY_FILE_RANGE, SYNCFS, STATX:
    // programs get EOPNOTSUPP or ENOTTY, or the kernel does without.
    const UNNEEDED: [u32; 17] = [
        21, 22, 23, 24, 25, 31, 32, 33, 34, 36, 37, 39, 40, 46, 47, 50, 52,
    ];
    const FUTURE: u32 = 4711;
    for opcode in UNNEEDED.into_iter().chain([FUTURE]) {
        let bytes = request(opcode, 9, &[0; 24]);
        assert_eq!(step(&bytes), refused(Errno::NOSYS));
    }
    let forget = request(opcode::FORGET, 9, &[0; 8]);
    assert_eq!(step(&forget), Handling::Nothing);
}
