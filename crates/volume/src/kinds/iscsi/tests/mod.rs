//! Our initiator against foreign targets, in virtual time.

mod aborts;
mod answers;
mod black_hole;
mod bounds;
mod caching;
mod changes;
mod claims;
mod compare;
mod ended;
mod flushes;
mod ghosts;
mod lanes;
mod loss;
mod path_changes;
mod paths;
mod restarts;
mod same_disk;
mod silence;

use std::{cell::Cell, net::SocketAddr, rc::Rc};

use engine::{
    Duration, Payload,
    net::TcpListener,
    sim::{Host, World},
    time,
};
use iscsi::Isid;

use super::{
    IscsiConfig, IscsiDisk, Multipath,
    foreign::{AtLogin, Claims, Foreign, Group, Instead},
};
use crate::{Durability, ErrorKind, Volume};

const UNIT_ATTENTION: u8 = 0x06;
const PORT: u16 = 3260;
/// The port of the second portal group.
const OTHER_PORT: u16 = 3261;
/// The reconnect timeout.
const RECONNECT: Duration = Duration::from_secs(20);

/// A client, and a target served at two portal groups.
struct Site {
    world: World,
    client: Host,
    host: Host,
    foreign: Rc<Foreign>,
}

impl Site {
    fn new(foreign: Foreign) -> Site {
        Site::with_seed(1, foreign)
    }

    fn with_seed(seed: u64, foreign: Foreign) -> Site {
        let world = World::new(seed);
        let (client, host) = (world.host("client"), world.host("target"));
        let foreign = Rc::new(foreign);
        for (group, port) in [(1, PORT), (2, OTHER_PORT)] {
            let (served, address) = (foreign.clone(), host.addr(port));
            host.spawn(async move {
                let listener = TcpListener::bind(address).expect("a free port");
                served.serve(listener, Group(group));
            });
        }
        world.run_for(Duration::from_millis(10));
        Site {
            world,
            client,
            host,
            foreign,
        }
    }

    /// Serves it over a second network too, at the portal group of the first.
    fn second_network(&self) -> SocketAddr {
        let second = SocketAddr::new(self.host.add_address(), PORT);
        let served = self.foreign.clone();
        self.host.spawn(async move {
            let listener = TcpListener::bind(second).expect("a free port");
            served.serve(listener, Group(1));
        });
        self.world.run_for(Duration::from_millis(10));
        second
    }

    fn config(&self) -> IscsiConfig {
        disk_at(self.host.addr(PORT))
    }

    /// Runs `test` with the opened disk.
    fn run(&self, test: impl AsyncFnOnce(&Rc<IscsiDisk>, &Foreign)) {
        self.world.block_on(&self.client, async {
            let disk = IscsiDisk::open(self.config()).await.expect("a login");
            test(&disk, &self.foreign).await;
            disk.close().await;
        });
    }
}

impl Foreign {
    fn with(self, test: impl AsyncFnOnce(&Rc<IscsiDisk>, &Foreign)) {
        Site::new(self).run(test);
    }
}

fn disk_at(address: SocketAddr) -> IscsiConfig {
    IscsiConfig {
        address,
        target_name: "iqn.2026-11.example:foreign".into(),
        lun: 0,
        initiator_name: "iqn.2026-11.io.sanstone:initiator".into(),
        isid: Isid::random([1, 2, 3], 1),
        multipath: Multipath::default(),
        chap: None,
        header_digest: false,
        data_digest: false,
        stage_times: false,
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(10),
        reconnect_timeout: RECONNECT,
    }
}

/// Answers the next command with this sense.
fn once(sense: [u8; 3]) -> impl FnMut(&[u8]) -> Option<Instead> {
    let next = Cell::new(Some(Instead::Sense(sense)));
    move |_| next.take()
}

#[test]
fn a_write_that_the_target_takes_a_part_of_has_failed() {
    for (len, taken) in [(4096, 512), (4096, 0), (512 << 10, 511 << 10)] {
        Foreign::new(Claims::default()).with(async |disk, foreign| {
            let write = || disk.write(0, Payload::zeroes(len), Durability::Cached);
            write().await.expect("all of it was taken");
            foreign.takes_max_bytes.set(Some(taken));
            let error = write().await.expect_err("the rest is nowhere");
            assert_eq!(error.kind(), ErrorKind::Protocol);
            let said = format!("accepted {taken} of {len} bytes");
            assert!(error.to_string().contains(&said), "{error}");
        });
    }
}

#[test]
fn a_reset_that_may_have_lost_writes_fails_the_flush() {
    const I_T_NEXUS_LOSS: u8 = 0x07;
    for (ascq, loses) in [
        (0x00, true),
        (0x01, true),
        (0x02, true),
        (0x04, true),
        (I_T_NEXUS_LOSS, false),
    ] {
        Foreign::new(Claims::default()).with(async |disk, foreign| {
            let write = disk.write(0, Payload::zeroes(512), Durability::Cached);
            write.await.expect("a write");
            foreign.answer(once([UNIT_ATTENTION, 0x29, ascq]));
            disk.read(0, 512).await.expect("it is sent again");
            let flushed = disk.flush().await.map_err(|error| error.kind());
            let expected = match loses {
                true => Err(ErrorKind::FlushFailed),
                false => Ok(()),
            };
            assert_eq!(flushed, expected, "29h/{ascq:02x}h");
        });
    }
}

#[test]
fn a_discard_is_cut_to_what_the_target_unmaps_at_once() {
    let claims = Claims {
        unmap_max_blocks: 100,
        ..Claims::default()
    };
    Foreign::new(claims).with(async |disk, foreign| {
        disk.discard(8 * 512, 256 * 512).await.expect("in pieces");
        let pieces = [(8, 100), (108, 100), (208, 56)];
        assert_eq!(foreign.unmapped.take(), pieces);
    });
}

#[test]
fn a_target_that_unmaps_nothing_at_once_has_no_unmap() {
    for (unmap_max_blocks, unmap_max_descriptors) in [(0, 1), (100, 0)] {
        let claims = Claims {
            unmap_max_blocks,
            unmap_max_descriptors,
            ..Claims::default()
        };
        Foreign::new(claims).with(async |disk, foreign| {
            assert_eq!(disk.shape().discard, None);
            disk.discard(0, 256 * 512).await.expect("it may do nothing");
            assert_eq!(foreign.unmapped.take(), []);
        });
    }
}

#[test]
fn no_command_is_longer_than_the_target_takes() {
    const LEN: usize = 250 * 512;
    for (transfer_max_blocks, write_same_max_blocks, transfers, same) in [
        (0, 0, &[250][..], &[250][..]),
        (100, 120, &[100, 100, 50], &[120, 120, 10]),
        (300, u64::MAX, &[250], &[250]),
    ] {
        let claims = Claims {
            transfer_max_blocks,
            write_same_max_blocks,
            ..Claims::default()
        };
        Foreign::new(claims).with(async |disk, foreign| {
            let read = disk.read(0, LEN).await.expect("a read");
            assert_eq!(read.len(), LEN);
            assert_eq!(foreign.transferred.take(), transfers);
            let write = disk.write(0, Payload::zeroes(LEN), Durability::Cached);
            write.await.expect("a write");
            assert_eq!(foreign.transferred.take(), transfers);
            let zeroes = disk.write_zeroes(0, LEN as u64, true, Durability::Cached);
            zeroes.await.expect("zeroes");
            assert_eq!(foreign.transferred.take(), same);
        });
    }
}

#[test]
fn what_is_unmapped_is_not_promised_to_be_zeroes() {
    for reads_zeroes in [false, true] {
        let claims = Claims {
            reads_zeroes,
            ..Claims::default()
        };
        Foreign::new(claims).with(async |disk, foreign| {
            foreign.ignores_unmap.set(true);
            let ones = || engine::Buf::copy_of(&[1; 4096]).into();
            let written = disk.write(0, ones(), Durability::Cached).await;
            written.expect("a write");
            // A target need not unmap what an UNMAP names, whatever LBPRZ says.
            let promised = disk.shape().discard.is_some_and(|d| d.reads_zeroes);
            disk.discard(0, 4096).await.expect("it may do nothing");
            let read = disk.read(0, 4096).await.expect("a read").to_vec();
            assert!(!promised && read == [1; 4096], "LBPRZ {reads_zeroes}");
            // Zeroes are written; they may be unmapped instead only where unmapped blocks read as zeroes.
            for may_discard in [false, true] {
                let zeroes = disk.write_zeroes(0, 4096, may_discard, Durability::Cached);
                zeroes.await.expect("zeroes");
                assert_eq!(foreign.same_unmaps.take(), [may_discard && reads_zeroes]);
            }
            let read = disk.read(0, 4096).await.expect("a read").to_vec();
            assert!(read == [0; 4096]);
        });
    }
}
