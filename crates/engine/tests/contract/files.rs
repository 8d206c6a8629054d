//! Files: what reads see, what is refused, what locks do, and which operations survive when nobody waits.

use std::{io, pin::pin};

use engine::{
    Buf, Payload,
    fs::{OpenOptions, SharedFile, remove},
    op::AllocateMode,
    spawn,
    time::{Duration, sleep, timeout},
};

use crate::site::{MS, Site, begin, pattern};

contract![
    what_was_written_is_read,
    a_file_gets_the_length_that_it_is_given,
    a_read_past_the_end_is_an_early_end,
    a_write_of_more_pieces_than_the_system_takes_lands_whole,
    a_misaligned_direct_access_is_refused,
    direct_and_durable_writes_are_read_back,
    a_file_must_exist_or_be_made,
    a_locked_file_is_refused_until_it_is_closed,
    a_handle_for_reading_takes_no_writes,
    allocation_zeroes_and_extends,
    holes_are_told_from_data,
    a_dropped_write_still_lands,
    more_operations_than_the_queue_has_entries_all_complete,
    a_file_goes_to_another_lane,
    a_file_that_is_opened_once_more_is_the_same_wherever_its_path_leads,
];

fn fresh() -> OpenOptions {
    OpenOptions {
        write: true,
        create_new: true,
        ..OpenOptions::default()
    }
}

async fn what_was_written_is_read(site: Site) {
    let file = SharedFile::open(&site.path("f"), &fresh()).expect("a new file");
    assert_eq!((file.len_bytes(), file.io_align_bytes()), (0, 1));
    let shared = file;
    let file = shared.on_lane();
    for (at, len) in [(0u64, 10usize), (5, 4096), (100_000, 1_000_000), (4095, 2)] {
        let bytes = pattern(len, at);
        let written = Buf::copy_of(&bytes);
        file.write_all_at(at, written.into(), false)
            .await
            .expect("a write");
        let (result, read) = file.read_exact_at(at, Buf::zeroed(len)).await;
        result.expect("a read");
        assert!(read[..] == bytes[..], "{len} bytes at {at}");
    }
    let (result, hole) = file.read_exact_at(50_000, Buf::copy_of(&[1; 100])).await;
    result.expect("a hole reads");
    assert_eq!(hole[..], [0; 100]);
    file.sync().await.expect("a sync");
    let again = SharedFile::open(&site.path("f"), &OpenOptions::default()).expect("it exists");
    assert_eq!(again.len_bytes(), 1_100_000);
    assert_eq!(shared.len_bytes(), 0, "when it was opened");
    assert_eq!(shared.len_bytes_now().expect("a look"), 1_100_000);
}

async fn a_file_gets_the_length_that_it_is_given(site: Site) {
    let shared = SharedFile::open(&site.path("f"), &fresh()).expect("a new file");
    let file = shared.on_lane();
    let written = file.write_all_at(0, pattern(10_000, 1).into(), false);
    written.await.expect("a write");
    for len in [20_000u64, 5_000, 20_000] {
        shared.set_len_bytes(len).expect("room");
        assert_eq!(shared.len_bytes_now().expect("a look"), len);
    }
    let (result, read) = file.read_exact_at(0, Buf::zeroed(20_000)).await;
    result.expect("a read");
    assert!(read[..5_000] == pattern(10_000, 1)[..5_000]);
    assert!(read[5_000..].iter().all(|&byte| byte == 0));
    let reading = OpenOptions::default();
    let reading = SharedFile::open(&site.path("f"), &reading).expect("it exists");
    let refused = reading.set_len_bytes(1);
    refused.expect_err("it is open for reading only");
}

async fn a_read_past_the_end_is_an_early_end(site: Site) {
    let file = SharedFile::open(&site.path("f"), &fresh())
        .expect("a new file")
        .on_lane();
    file.write_all_at(0, pattern(1000, 1).into(), false)
        .await
        .expect("a write");
    for at in [900, 1000, 5000] {
        let (result, _) = file.read_exact_at(at, Buf::new(200)).await;
        let error = result.expect_err("the file ends before");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}

async fn a_write_of_more_pieces_than_the_system_takes_lands_whole(site: Site) {
    let file = SharedFile::open(&site.path("f"), &fresh())
        .expect("a new file")
        .on_lane();
    let mut payload = Payload::new();
    for i in 0..2500 {
        payload.push(pattern(100 + i % 13, i as u64).freeze());
    }
    let expected = payload.to_vec();
    file.write_all_at(3, payload, false).await.expect("a write");
    let (result, read) = file.read_exact_at(3, Buf::zeroed(expected.len())).await;
    result.expect("a read");
    assert!(read[..] == expected[..]);
}

async fn a_misaligned_direct_access_is_refused(site: Site) {
    let options = OpenOptions {
        direct: true,
        ..fresh()
    };
    let file = SharedFile::open(&site.path("f"), &options).expect("a new file");
    let align = file.io_align_bytes() as usize;
    assert!(align >= 512 && align.is_power_of_two(), "{align}");
    let file = file.on_lane();
    file.write_all_at(0, pattern(64 << 10, 1).into(), false)
        .await
        .expect("aligned");
    let einval = Some(libc::EINVAL);
    let (offset, _) = file.read_exact_at(1, Buf::new(align)).await;
    assert_eq!(offset.expect_err("offset").raw_os_error(), einval);
    let (len, _) = file.read_exact_at(0, Buf::new(align + 1)).await;
    assert_eq!(len.expect_err("length").raw_os_error(), einval);
    // Some drivers copy data that is misaligned in memory; if they accept it, they must write it.
    let shifted = pattern(2 * align, 2).freeze().slice(1..align + 1);
    match file.write_all_at(0, shifted.clone().into(), false).await {
        Ok(()) => {
            let (result, read) = file.read_exact_at(0, Buf::new(align)).await;
            result.expect("a read");
            assert!(read[..] == shifted[..]);
        }
        Err(error) => assert_eq!(error.raw_os_error(), einval),
    }
    let (result, _) = file.read_exact_at(align as u64, Buf::new(align)).await;
    result.expect("the handle still works");
}

async fn direct_and_durable_writes_are_read_back(site: Site) {
    for (name, direct, durable) in [("a", true, false), ("b", false, true), ("c", true, true)] {
        let options = OpenOptions {
            direct,
            durable,
            ..fresh()
        };
        let file = SharedFile::open(&site.path(name), &options)
            .expect("a new file")
            .on_lane();
        for round in 0..4u64 {
            let bytes = pattern(256 << 10, round).freeze();
            let fua = round % 2 == 1;
            file.write_all_at(round * 8192, bytes.clone().into(), fua)
                .await
                .expect("a write");
            let (result, read) = file.read_exact_at(round * 8192, Buf::new(256 << 10)).await;
            result.expect("a read");
            assert!(read[..] == bytes[..]);
        }
        file.sync().await.expect("a sync");
    }
}

async fn a_file_must_exist_or_be_made(site: Site) {
    let path = site.path("f");
    let missing = SharedFile::open(&path, &OpenOptions::default()).expect_err("missing");
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    drop(SharedFile::open(&path, &fresh()).expect("made"));
    let exists = SharedFile::open(&path, &fresh()).expect_err("it exists");
    assert_eq!(exists.kind(), io::ErrorKind::AlreadyExists);
    let create = OpenOptions {
        write: true,
        create: true,
        ..OpenOptions::default()
    };
    SharedFile::open(&path, &create).expect("opened as it is");
    SharedFile::open(&site.path("g"), &create).expect("made");
}

async fn a_locked_file_is_refused_until_it_is_closed(site: Site) {
    let path = site.path("f");
    let options = |write| OpenOptions {
        write,
        create: true,
        lock: true,
        ..OpenOptions::default()
    };
    let holder = SharedFile::open(&path, &options(true)).expect("free");
    for write in [true, false] {
        let error = SharedFile::open(&path, &options(write)).expect_err("locked");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
    let without = OpenOptions::default();
    SharedFile::open(&path, &without).expect("who locks nothing is not kept out");
    let on_lane = holder.on_lane();
    drop(holder);
    SharedFile::open(&path, &options(true)).expect_err("a lane still holds it");
    drop(on_lane);
    let reader = SharedFile::open(&path, &options(false)).expect("free again");
    let second = SharedFile::open(&path, &options(false)).expect("readers share");
    drop((reader, second));
    SharedFile::open(&path, &options(true)).expect("free again");
}

async fn a_handle_for_reading_takes_no_writes(site: Site) {
    let path = site.path("f");
    drop(SharedFile::open(&path, &fresh()).expect("made"));
    let file = SharedFile::open(&path, &OpenOptions::default())
        .expect("there")
        .on_lane();
    let error = file.write_all_at(0, pattern(10, 1).into(), false).await;
    assert_eq!(
        error.expect_err("read-only").raw_os_error(),
        Some(libc::EBADF)
    );
}

async fn holes_are_told_from_data(site: Site) {
    const PIECE: u64 = 64 << 10;
    let file = SharedFile::open(&site.path("f"), &fresh())
        .expect("a new file")
        .on_lane();
    for at in [PIECE, 5 * PIECE] {
        let bytes = pattern(PIECE as usize, at);
        file.write_all_at(at, bytes.into(), false)
            .await
            .expect("a write");
    }
    let at = async |at| {
        let extent = file.extent(at).await.expect("it looks");
        (extent.is_allocated, extent.end)
    };
    assert_eq!(at(0).await, (false, PIECE));
    assert_eq!(at(PIECE).await, (true, 2 * PIECE));
    assert_eq!(at(2 * PIECE - 1).await, (true, 2 * PIECE));
    assert_eq!(at(2 * PIECE).await, (false, 5 * PIECE));
    let behind = file.extent(6 * PIECE).await.expect_err("behind the end");
    assert_eq!(behind.kind(), io::ErrorKind::UnexpectedEof);
    file.allocate(AllocateMode::PunchHole, 0, 2 * PIECE)
        .await
        .expect("a hole");
    assert_eq!(at(0).await, (false, 5 * PIECE));
}

async fn allocation_zeroes_and_extends(site: Site) {
    let file = SharedFile::open(&site.path("f"), &fresh())
        .expect("a new file")
        .on_lane();
    let mut model = vec![0; 300_000];
    model[..200_000].copy_from_slice(&pattern(200_000, 1));
    file.write_all_at(0, Buf::copy_of(&model[..200_000]).into(), false)
        .await
        .expect("a write");
    file.allocate(AllocateMode::PunchHole, 5000, 60_000)
        .await
        .expect("a hole");
    model[5000..65_000].fill(0);
    file.allocate(AllocateMode::Zero, 100_001, 777)
        .await
        .expect("zeroes");
    model[100_001..100_778].fill(0);
    file.allocate(AllocateMode::PunchHole, 190_000, 50_000)
        .await
        .expect("over the end");
    model[190_000..].fill(0);
    let (past, _) = file.read_exact_at(200_000, Buf::new(1)).await;
    assert_eq!(
        past.expect_err("a hole does not extend").kind(),
        io::ErrorKind::UnexpectedEof
    );
    file.allocate(AllocateMode::Reserve, 0, 300_000)
        .await
        .expect("space");
    let (result, read) = file.read_exact_at(0, Buf::new(300_000)).await;
    result.expect("reserving extends");
    assert!(read[..] == model[..]);
    file.allocate(AllocateMode::Reserve, 0, 0)
        .await
        .expect_err("nothing to allocate");
}

async fn a_dropped_write_still_lands(site: Site) {
    let file = SharedFile::open(&site.path("f"), &fresh())
        .expect("a new file")
        .on_lane();
    let bytes = pattern(4096, 9);
    {
        // A longer write may be split. This one is a single piece and lands whole, or its first
        // part does if the system writes short.
        let mut write = pin!(file.write_all_at(0, Buf::copy_of(&bytes).into(), true));
        begin(write.as_mut()).await;
    }
    let landed = timeout(Duration::from_secs(60), async {
        loop {
            let (result, read) = file.read_exact_at(0, Buf::new(1)).await;
            if result.is_ok() && read[0] == bytes[0] {
                break;
            }
            sleep(MS).await;
        }
    });
    landed
        .await
        .expect("the write lands although nobody waits for it");
}

async fn more_operations_than_the_queue_has_entries_all_complete(site: Site) {
    const N: usize = 1000;
    let shared = SharedFile::open(&site.path("f"), &fresh()).expect("a new file");
    let all = pattern(N * 512, 3);
    shared
        .on_lane()
        .write_all_at(0, Buf::copy_of(&all).into(), false)
        .await
        .expect("a write");
    let reads: Vec<_> = (0..N)
        .map(|i| {
            let file = shared.on_lane();
            spawn(async move { file.read_exact_at((i * 512) as u64, Buf::new(512)).await })
        })
        .collect();
    for (i, read) in reads.into_iter().enumerate() {
        let (result, buf) = read.await;
        result.expect("a read");
        assert!(buf[..] == all[i * 512..(i + 1) * 512]);
    }
}

async fn a_file_goes_to_another_lane(site: Site) {
    let file = SharedFile::open(&site.path("f"), &fresh()).expect("a new file");
    let shared = file.clone();
    let call = site.other.call(move || async move {
        let file = shared.on_lane();
        file.write_all_at(0, pattern(5000, 4).into(), false).await
    });
    call.await.expect("the lane lives").expect("a write");
    let (result, read) = file.on_lane().read_exact_at(0, Buf::new(5000)).await;
    result.expect("a read");
    assert!(read[..] == pattern(5000, 4)[..]);
}

async fn a_file_that_is_opened_once_more_is_the_same_wherever_its_path_leads(site: Site) {
    let path = site.path("f");
    let locked = OpenOptions {
        lock: true,
        ..fresh()
    };
    let first = SharedFile::open(&path, &locked).expect("a new file");
    assert!(first.is_at(&path) && !first.is_at(&site.path("g")));
    remove(&path).expect("it is there");
    assert!(!first.is_at(&path));
    let other = SharedFile::open(&path, &fresh()).expect("another new file");
    assert!(other.is_at(&path) && !first.is_at(&path));
    let writing = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    let again = first.reopen(&writing).expect("the first one");
    let written = pattern(10, 1);
    let bytes = Buf::copy_of(&written).into();
    let result = again.on_lane().write_all_at(0, bytes, false).await;
    result.expect("a write");
    let (result, read) = first.on_lane().read_exact_at(0, Buf::zeroed(10)).await;
    result.expect("a read");
    assert_eq!(read[..], written[..]);
    assert_eq!(other.len_bytes_now().expect("a look"), 0);
    drop(first);
    again.reopen(&locked_existing()).expect("it is free again");
    assert!(!again.is_at(&path));
}

fn locked_existing() -> OpenOptions {
    OpenOptions {
        lock: true,
        write: true,
        ..OpenOptions::default()
    }
}
