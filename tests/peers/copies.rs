//! Which disks of third-party targets can be a copy of a mirror. One that cannot is refused before anything is written.

use harness::directory::Directory;
use harness::lio::{Backing, Lio};
use harness::sanstone::call;
use harness::tgt::Tgt;

/// Makes a mirror of a file and the disk at `url`. Returns what is said against it.
fn refusal_of(url: &str) -> Option<String> {
    let directory = Directory::new();
    let file = "{ file = { path = \"copy\", size = \"32MiB\", cache = \"direct-sync\" } }";
    let config = format!(
        "state = \"state\"\n[volume.db]\nmirror = {{ of = [{file}, {{ iscsi = {{ url = \"{url}\" }} }}] }}\n"
    );
    let config = directory.write("sanstone.toml", config);
    let config = config.to_str().expect("plain text");
    let made = call(&["volume", "create", "-c", config, "db"]);
    (made.code() != Some(0)).then_some(made.stderr)
}

#[test]
fn tgt_forgets_who_may_write_and_has_no_copy() {
    let directory = Directory::new();
    let mut tgt = Tgt::start();
    let url = tgt.add_disk(&directory.sparse("disk.img", 32 << 20));
    let refusal = refusal_of(&url).expect("it has a volatile write cache");
    assert!(refusal.contains("volatile write cache"), "{refusal}");
    tgt.disables_write_cache(1);
    let refusal = refusal_of(&url).expect("it has no APTPL");
    assert!(refusal.contains("it has no APTPL"), "{refusal}");
    let disk = std::fs::read(directory.join("disk.img")).expect("it is there");
    assert!(disk.iter().all(|&byte| byte == 0), "it was written to");
}

#[test]
fn lio_can_have_a_copy() {
    if let Some(lio) = Lio::serve(Backing::Ram, 32 << 20, 512) {
        assert_eq!(refusal_of(&lio.url()), None);
    }
}
