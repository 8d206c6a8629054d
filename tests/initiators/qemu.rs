//! QEMU's iscsi:// driver: a whole image there and back, and patterns at awkward places.

use harness::directory::Directory;
use harness::disk::Disk;
use harness::process::program;
use harness::run::{Ran, run};
use std::process::Command;
use std::time::Duration;

#[track_caller]
fn qemu(tool: &str, arguments: &[&str]) -> Ran {
    let mut command = Command::new(program(tool, "qemu-utils"));
    run(command.args(arguments), Duration::from_secs(120))
}

#[test]
fn a_random_image_survives_the_way_there_and_back() {
    const IMAGE_BYTES: usize = 256 << 20;
    let disk = Disk::new(IMAGE_BYTES as u64);
    let directory = Directory::new();
    let contents = harness::noise(7, IMAGE_BYTES);
    let there = directory.write("there.img", &contents);
    let back = directory.join("back.img");
    let (there, back) = (there.to_string_lossy(), back.to_string_lossy());
    qemu(
        "qemu-img",
        &["convert", "-n", "-f", "raw", "-O", "raw", &there, &disk.url],
    )
    .success();
    qemu(
        "qemu-img",
        &["convert", "-f", "raw", "-O", "raw", &disk.url, &back],
    )
    .success();
    // QEMU's own comparison reads the disk once more, with its own request sizes.
    qemu(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", &there, &disk.url],
    )
    .success();
    assert!(
        std::fs::read(&*back).expect("qemu-img wrote it") == contents,
        "the image changed"
    );
}

#[test]
fn patterns_verify_at_every_size_and_offset() {
    let disk = Disk::new(64 << 20);
    let mut commands = Vec::new();
    let places = [
        ("0", "512"),
        ("512", "1024"),
        ("4096", "4096"),
        ("7680", "131072"),
        ("1M", "4M"),
        ("8388096", "1M"),
        ("67108352", "512"),
    ];
    for (number, (offset, length)) in places.iter().enumerate() {
        commands.push(format!("write -P {} {offset} {length}", number + 1));
    }
    for (number, (offset, length)) in places.iter().enumerate().filter(|(n, _)| *n != 2) {
        commands.push(format!("read -P {} {offset} {length}", number + 1));
    }
    for command in [
        "aio_write -P 0x5a 16M 1M",
        "aio_write -P 0x5b 17M 1M",
        "aio_flush",
        "read -P 0x5a 16M 1M",
        "read -P 0x5b 17M 1M",
        "write -f -P 0x77 20M 64k",
        "read -P 0x77 20M 64k", // FUA
        "write -z 20M 4k",
        "read -P 0 20M 4k",
        "read -P 0x77 20484k 60k",
        "flush",
        "discard 24M 1M",
    ] {
        commands.push(command.to_owned());
    }
    let mut arguments = vec!["-f", "raw", &disk.url];
    for command in &commands {
        arguments.extend(["-c", command]);
    }
    let ran = qemu("qemu-io", &arguments).success();
    assert!(!ran.text().contains("failed"), "{ran}");
}

#[test]
fn a_wrong_pattern_would_be_noticed() {
    let disk = Disk::new(16 << 20);
    let arguments = [
        "-f",
        "raw",
        &*disk.url,
        "-c",
        "write -P 1 0 4k",
        "-c",
        "read -P 2 0 4k",
    ];
    assert_eq!(qemu("qemu-io", &arguments).code(), Some(1));
}
