//! A removable disk is ejected by START STOP UNIT (SBC-3 5.25) when what was written to it is durable.

use harness::directory::Directory;
use harness::sanstone::{IQN, Sanstone, target_table};
use harness::wire::{Session, write_10};

const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;

#[test]
fn an_eject_whose_flush_fails_leaves_the_medium_where_it_is() {
    const TEST_UNIT_READY: [u8; 6] = [0; 6];
    const EJECT: [u8; 6] = [0x1B, 0, 0, 0, 0x02, 0];
    const EJECT_WITHOUT_FLUSH: [u8; 6] = [0x1B, 0, 0, 0, 0x06, 0];
    let directory = Directory::new();
    let port = harness::free_port();
    let target = target_table(port, &["disk"]).replace(
        "luns = [\"disk\"]",
        "luns = [{ volume = \"disk\", removable = true }]",
    );
    let configuration = format!(
        "[volume.disk.fault]\nrules = [{{ on = \"flush\", fail = \"medium\", times = 1 }}]\n\
         of = {{ file = {{ path = \"disk.img\", size = \"16MiB\" }} }}\n{target}"
    );
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let mut status = |cdb: &[u8], data: &[u8]| {
        let response = session.execute(cdb, data, 0);
        response.expect("a response").0
    };
    assert_eq!(status(&write_10(0, 1), &[0x5A; 512]), GOOD);
    assert_eq!(status(&EJECT, &[]), CHECK_CONDITION);
    assert_eq!(status(&TEST_UNIT_READY, &[]), GOOD, "it is gone");
    assert_eq!(status(&EJECT, &[]), CHECK_CONDITION, "it is forgotten");
    assert_eq!(status(&EJECT_WITHOUT_FLUSH, &[]), GOOD);
    assert_eq!(status(&TEST_UNIT_READY, &[]), CHECK_CONDITION);
}
