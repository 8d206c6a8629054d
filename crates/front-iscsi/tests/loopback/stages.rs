//! Every command is counted once, with the time of each of its stages.

use engine::{Buf, Duration, LaneFuture, time};
use unit::{CommandKind, OpenVolume, Stage};
use volume::{
    Durability, Volume,
    layer::fault::{Fault, FaultAction, FaultHandle, Rule},
};

use crate::{IscsiDisk, config, disk_at, ram, with_config};

const SLOW: Duration = Duration::from_millis(20);

#[test]
fn the_time_of_a_command_is_where_it_was_spent() {
    let faults = FaultHandle::new();
    faults.add(Rule::always(FaultAction::Delay(SLOW)));
    let fast = ram(1 << 20, 512);
    let slow: OpenVolume = std::sync::Arc::new(move || {
        let (fast, faults) = (fast(), faults.clone());
        LaneFuture::new(async move {
            let volume = Fault::new(fast.await?, faults);
            Ok(std::rc::Rc::new(volume) as volume::SharedVolume)
        })
    });
    with_config(config(slow), async |server| {
        let disk = IscsiDisk::open(disk_at(server.portals()[0])).await;
        let disk = disk.expect("a login");
        for _ in 0..3 {
            disk.read(0, 4096).await.expect("a read");
        }
        let data = Buf::zeroed(4096);
        disk.write(0, data.into(), Durability::Cached)
            .await
            .expect("a write");
        disk.flush().await.expect("a flush");
        let report = server.units.stage_times();
        let (volume, mine) = (&report.volumes["disk"], report.initiators.values().next());
        let mine = mine.expect("this session");
        for (kind, commands) in [
            (CommandKind::Read, 3),
            (CommandKind::Write, 1),
            (CommandKind::Other, 1),
        ] {
            for table in [volume, mine] {
                for stage in [Stage::Queue, Stage::Volume, Stage::Reply, Stage::Total] {
                    assert_eq!(table.of(kind, stage).len(), commands, "{kind:?} {stage:?}");
                }
            }
            let slowest = |stage| Duration::from_nanos(volume.of(kind, stage).max());
            assert!(slowest(Stage::Volume) > SLOW * 9 / 10, "{kind:?}");
            assert!(slowest(Stage::Total) >= slowest(Stage::Volume), "{kind:?}");
        }
        assert_eq!(volume.of(CommandKind::Write, Stage::Transfer).len(), 1);
        assert_eq!(volume.of(CommandKind::Read, Stage::Transfer).len(), 0);
        assert!(report.to_string().contains("volume disk"), "{report}");
        disk.close().await;
        // The end of the session does not reduce the volume's totals.
        while !server.units.stage_times().initiators.is_empty() {
            time::sleep(Duration::from_millis(5)).await;
        }
        let reads = &server.units.stage_times().volumes["disk"];
        assert_eq!(reads.of(CommandKind::Read, Stage::Total).len(), 3);
    });
}
