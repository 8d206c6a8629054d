//! A concat of two files, as an NBD client sees it: its length, a write over the border, children in another order, and
//! one that is missing.

use harness::directory::Directory;
use harness::sanstone::call;

use crate::{Attached, MIB, nbdinfo, qemu_io};

/// The configuration with these files, each with a MiB more than its data.
fn written(directory: &Directory, files: &[(&str, u64)]) -> String {
    let children: Vec<String> = files
        .iter()
        .map(|(name, mib)| {
            let size = (mib + 1) * MIB;
            format!("{{ file = {{ path = \"{name}\", size = \"{size}B\" }} }}")
        })
        .collect();
    let children = children.join(", ");
    let text = format!("state = \"state\"\n[volume.db]\nconcat = {{ of = [{children}] }}\n");
    let path = directory.write("sanstone.toml", text);
    path.display().to_string()
}

#[test]
fn a_concat_is_one_disk_whatever_the_order_of_its_children() {
    let directory = Directory::new();
    let config = written(&directory, &[("a.img", 3), ("b.img", 5)]);
    let blank = call(&["attach", "-c", &config, "db", "--nbd", "127.0.0.1:0"]);
    assert_ne!(blank.code(), Some(0), "{blank}");
    assert!(blank.text().contains("sanstone volume create"), "{blank}");
    call(&["volume", "create", "-c", &config, "db"]).success();
    let attached = Attached::again(directory, &[]);
    let told = nbdinfo(&["--size", &attached.uri()]).success();
    assert_eq!(told.stdout.trim(), (8 * MIB).to_string());
    let border = 3 * MIB - 65536;
    let write = [
        format!("write -P 7 {border} 128k"),
        "write -P 8 0 4k".into(),
        "flush".into(),
    ];
    let write: Vec<&str> = write.iter().map(String::as_str).collect();
    qemu_io(&attached.uri(), &write).success();
    let Attached {
        mut daemon,
        directory,
    } = attached;
    daemon.signal("TERM");
    daemon.wait(crate::LIMIT).expect("it ends");
    written(&directory, &[("b.img", 5), ("a.img", 3)]);
    let attached = Attached::again(directory, &[]);
    let read = [format!("read -P 7 {border} 128k"), "read -P 8 0 4k".into()];
    let read: Vec<&str> = read.iter().map(String::as_str).collect();
    let ran = qemu_io(&attached.uri(), &read).success();
    assert!(!ran.text().contains("failed"), "{ran}");
    let Attached {
        mut daemon,
        directory,
    } = attached;
    daemon.signal("TERM");
    daemon.wait(crate::LIMIT).expect("it ends");
    let config = written(&directory, &[("b.img", 5)]);
    let missing = call(&["attach", "-c", &config, "db", "--nbd", "127.0.0.1:0"]);
    assert_ne!(missing.code(), Some(0), "{missing}");
    assert!(missing.text().contains("child 0 is missing"), "{missing}");
}
