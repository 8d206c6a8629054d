//! What happens to an I/O that is dropped before its end: nobody may believe that the medium is done with it.

use std::{collections::BTreeMap, env, process::Command, rc::Rc, sync::Arc};

use engine::{Lane, LaneConfig, LaneFuture, cross::oneshot};
use unit::{
    CommandId, DiskSpec, Io, Luns, MemoryLimits, TargetPort, Units, UnitsConfig, no_commands,
};
use volume::{SharedVolume, leaf::ram::Region};

/// Set where the I/O is dropped: a program of its own.
const IN_CHILD: &str = "SANSTONE_TEST_DROPS_AN_IO";

#[test]
fn an_io_that_is_dropped_before_its_end_ends_the_process() {
    if env::var_os(IN_CHILD).is_some() {
        return drop_one();
    }
    let this = "an_io_that_is_dropped_before_its_end_ends_the_process";
    let child = Command::new(env::current_exe().expect("a path"))
        .args(["--exact", this, "--nocapture"])
        .env(IN_CHILD, "")
        .output()
        .expect("it runs");
    let error = String::from_utf8_lossy(&child.stderr);
    let said = "an I/O of test on disk was dropped before its end";
    assert!(error.contains(said), "{error}");
    assert!(!child.status.success());
}

fn drop_one() {
    let region = Region::new(1 << 20, 512).expect("memory for a small disk");
    let disk = DiskSpec {
        name: "disk".into(),
        uuid: [1; 16],
        open: Arc::new(move || {
            let region = region.clone();
            LaneFuture::new(async move { Ok(Rc::new(region.on_lane()) as SharedVolume) })
        }),
        kept: None,
        told: Vec::new(),
    };
    let config = UnitsConfig {
        disks: vec![disk],
        keep: None,
        note: None,
        limits: MemoryLimits::default(),
    };
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let handle = lane.handle();
    lane.block_on(async {
        let units = Units::open(config, &[handle]).await.expect("its disk");
        let (done, ended) = oneshot();
        units.enter(0, move |units| async move {
            let port = TargetPort {
                target_name: "iqn.2026-11.io.sanstone:unit".into(),
                portal_group_tag: 1,
                relative_port: 1,
                port_group: 1,
            };
            let unit = units.unit("disk", port, false, false);
            let unit = unit.expect("it can be shown");
            let luns: Rc<Luns> = Rc::new(BTreeMap::from([(0, unit.clone())]));
            let nexus = units.enter("test", &luns, no_commands());
            drop(Io::begin(&nexus, CommandId(1), 0, &unit));
            done.send(());
        });
        ended.outcome().await.expect("it is dropped");
    });
}
