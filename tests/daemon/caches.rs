//! A cache answers from memory, so it is refused where others may write to what is below.

use harness::{
    directory::Directory,
    sanstone::{IQN, Sanstone, call, target_table},
};

#[test]
fn a_stripe_of_disks_that_take_no_writes_has_no_cache_without_the_users_word() {
    let (far, near) = (Directory::new(), Directory::new());
    let (port, other_port) = (harness::free_port(), harness::free_port());
    // One disk in two targets: who may not write to it here may do so there.
    let reading = target_table(other_port, &[])
        .replace(IQN, &format!("{IQN}-reading"))
        .replace("[]", "[{ volume = \"disk\", read_only = true }]");
    let text = format!(
        "[volume.disk]\nfile = {{ path = \"disk.img\", size = \"16MiB\" }}\n{}{reading}",
        target_table(port, &["disk"])
    );
    let share = Sanstone::serve_configuration(far.path(), &text, port);
    let urls = [
        share.url(0),
        format!("iscsi://127.0.0.1:{other_port}/{IQN}-reading/0"),
    ];
    let own_port = harness::free_port();
    let config = |way: usize, word: &str| {
        let url = &urls[way];
        let text = format!(
            "[volume.db]\ncache = {{ size = \"1MiB\", {word}of = {{ stripe = {{ of = [{{ iscsi = {{ \
             url = \"{url}\" }} }}] }} }} }}\n{}",
            target_table(own_port, &["db"])
        );
        let file = near.write("sanstone.toml", &text);
        (text, file.display().to_string())
    };
    let (_, file) = config(0, "");
    call(&["volume", "create", "-c", &file, "db"]).success();
    let (_, file) = config(1, "");
    // Only the target knows that the disk is read-only.
    call(&["check", "-c", &file]).success();
    let refused = call(&["serve", "-c", &file]);
    assert_eq!(refused.code(), Some(1), "{refused}");
    for word in [
        "sanstone.toml:2:18",
        "nothing keeps others from writing",
        "only_writer = true",
    ] {
        assert!(refused.stderr.contains(word), "{word}: {refused}");
    }
    let (text, _) = config(1, "only_writer = true, ");
    Sanstone::serve_configuration(near.path(), &text, own_port);
}
