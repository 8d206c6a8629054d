//! Copies, patterns and checksums by third-party clients.

use harness::noise;
use std::fs;

use crate::{Attached, MIB, SIZE, client, fio_verifies, nbdinfo, qemu_io};

fn qemu_img(arguments: &[&str]) -> harness::run::Ran {
    client("qemu-img", "qemu-utils", arguments)
}

#[test]
fn libnbd_is_told_what_the_volume_is() {
    let attached = Attached::file("", &[]);
    let text = nbdinfo(&["--json", &attached.uri()]).success().stdout;
    let told: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let export = &told["exports"][0];
    for (name, value) in [
        ("export-name", "db".into()),
        ("export-size", SIZE.into()),
        ("is_read_only", false.into()),
        ("can_flush", true.into()),
        ("can_fua", true.into()),
        ("can_multi_conn", true.into()),
        ("can_trim", true.into()),
        ("can_zero", true.into()),
        ("can_df", true.into()),
        ("block_size_minimum", 512.into()),
        ("block_size_preferred", 4096.into()),
        ("block_size_maximum", (4 * MIB).into()),
    ] {
        let value: serde_json::Value = value;
        assert_eq!(export[name], value, "{name} in {text}");
    }
    let listed = nbdinfo(&["--list", "--size", &attached.uri()]);
    assert!(
        listed.text().contains("db") || listed.code() == Some(1),
        "{listed}"
    );
    let other = format!("nbd+unix:///other?socket={}", attached.socket().display());
    assert_eq!(nbdinfo(&[&other]).code(), Some(1));
}

#[test]
fn an_image_is_copied_in_and_out_and_its_holes_stay() {
    let attached = Attached::file("", &[]);
    let data = noise(7, (5 * MIB) as usize);
    let image = attached.directory.sparse("in.img", SIZE);
    let written = fs::OpenOptions::new()
        .write(true)
        .open(&image)
        .and_then(|file| {
            use std::os::unix::fs::FileExt;
            file.write_all_at(&data, 8 * MIB)
        });
    written.expect("a test can write its files");
    let (image, uri) = (image.display().to_string(), attached.uri());
    let out = attached.directory.join("out.img").display().to_string();
    client("nbdcopy", "libnbd-bin", &[&image, &uri]).success();
    client("nbdcopy", "libnbd-bin", &[&uri, &out]).success();
    let copied = fs::read(&out).expect("it is there");
    assert!(
        copied == fs::read(&image).expect("it is there"),
        "the copy differs"
    );
    qemu_img(&["compare", "-f", "raw", "-F", "raw", &image, &uri]).success();
    // Written blocks are mapped, the rest is not.
    let map = nbdinfo(&["--map", &uri]).success().stdout;
    let extents: Vec<Vec<&str>> = map
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let kinds: Vec<&str> = extents.iter().map(|extent| extent[3]).collect();
    assert_eq!(kinds, ["hole,zero", "data", "hole,zero"], "{map}");
    assert_eq!(
        extents[1][..2],
        [(8 * MIB).to_string(), (5 * MIB).to_string()],
        "{map}"
    );
    qemu_img(&["map", "-f", "raw", "--output=json", &uri]).success();
    // QEMU's own way of naming an export.
    let qcow2 = attached.directory.join("in.qcow2").display().to_string();
    qemu_img(&["convert", "-f", "raw", "-O", "qcow2", &image, &qcow2]).success();
    qemu_io(&uri, &[&format!("write -P 7 0 {SIZE}")]).success();
    qemu_img(&[
        "convert", "-n", "-W", "-m", "8", "-f", "qcow2", "-O", "raw", &qcow2, &uri,
    ])
    .success();
    qemu_img(&["compare", "-f", "raw", "-F", "raw", &image, &uri]).success();
}

#[test]
fn what_qemu_writes_zeroes_and_discards_is_read_back() {
    let attached = Attached::file("", &[]);
    let ran = qemu_io(
        &attached.uri(),
        &[
            "write -P 1 0 1M",
            "write -f -P 2 64k 512",
            "write -z 128k 64k",
            "write -z -u 256k 64k",
            "discard 512k 64k",
            "flush",
            "read -P 1 0 64k",
            "read -P 2 64k 512",
            "read -P 1 66048 65024",
            "read -P 0 128k 64k",
            "read -P 1 192k 64k",
            "read -P 0 256k 64k",
            "read -P 0 512k 64k",
            "aio_write -P 3 2M 4M",
            "aio_write -P 4 8M 4M",
            "aio_flush",
            "read -P 3 2M 4M",
            "read -P 4 8M 4M",
        ],
    );
    let ran = ran.success();
    assert!(!ran.text().contains("failed"), "{ran}");
}

#[test]
fn a_read_only_volume_takes_no_writes() {
    let attached = Attached::file("", &["--read-only"]);
    let refused = qemu_io(&attached.uri(), &["write -P 1 0 4k"]);
    assert_ne!(refused.code(), Some(0), "{refused}");
    let told = nbdinfo(&[&attached.uri()]).success();
    assert!(told.stdout.contains("is_read_only: true"), "{told}");
}

/// fio verifies the checksum of each block it reads, at every depth, with concurrent trims.
#[test]
fn fio_finds_every_block_as_it_was_written() {
    let attached = Attached::file("lanes = 2", &[]);
    for depth in ["1", "8", "64"] {
        let trims = ["--name=trim", "--rw=randtrim", "--offset=32m", "--size=16m"];
        fio_verifies(&attached.uri(), depth, &trims);
    }
}
