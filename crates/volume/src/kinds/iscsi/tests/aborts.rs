//! Another initiator resets the disk, or clears its task set: commands of ours that were in flight are never answered, and
//! the target tells of it with the next one.

use engine::{Buf, spawn, task};

use super::{paths::with_second, *};

const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2a;
const RESET: [u8; 3] = [UNIT_ATTENTION, 0x29, 0x03];
const CLEARED: [u8; 3] = [UNIT_ATTENTION, 0x2f, 0x00];
/// Much less than a request may take before its session counts as lost.
const PROMPT: Duration = Duration::from_secs(1);

/// Has the first of these commands never be answered.
fn first_is_lost(opcode: u8) -> impl FnMut(&[u8]) -> Option<Instead> {
    let mut is_first = true;
    move |cdb| {
        let is_lost = cdb[0] == opcode && std::mem::take(&mut is_first);
        is_lost.then_some(Instead::Late)
    }
}

/// A request is in flight when another initiator's `attention` comes for every path.
async fn aborted(disk: &Rc<IscsiDisk>, foreign: &Foreign, (opcode, attention): (u8, [u8; 3])) {
    foreign.answer(first_is_lost(opcode));
    let logins = foreign.logins.get();
    let (began, asked) = (time::now(), disk.clone());
    let asked = spawn(async move {
        match opcode {
            READ_10 => asked.read(0, 512).await.map(drop),
            _ => {
                let zeroes = Payload::zeroes(512);
                asked.write(0, zeroes, Durability::Cached).await
            }
        }
    });
    time::sleep(Duration::from_millis(100)).await;
    for group in [1, 2] {
        foreign.attentions.borrow_mut().insert(group, attention);
    }
    disk.read(512, 512).await.expect("it is sent again");
    asked.await.expect("it is sent again");
    let took = time::now() - began;
    assert!(took < PROMPT, "{opcode:02x}h {attention:02x?}: {took:?}");
    assert_eq!(foreign.logins.get(), logins, "no session is lost");
    disk.flush().await.expect("nothing is lost");
}

#[test]
fn what_another_initiator_has_aborted_is_sent_again_at_once() {
    for opcode in [READ_10, WRITE_10] {
        for attention in [RESET, CLEARED] {
            let site = Site::new(Foreign::new(Claims::default()));
            site.run(async |disk, foreign| {
                aborted(disk, foreign, (opcode, attention)).await;
            });
        }
    }
}

/// The next command goes over the other path.
#[test]
fn every_path_is_asked_what_another_initiator_has_aborted() {
    let site = Site::new(Foreign::new(paths::named()));
    let config = with_second(&site, site.host.addr(OTHER_PORT));
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config).await.expect("two logins");
        for opcode in [READ_10, WRITE_10] {
            aborted(&disk, &site.foreign, (opcode, RESET)).await;
        }
        disk.close().await;
    });
}

/// The target takes up a write only once it has its data, as tgt does, so that a later command is told of the reset first.
#[test]
fn a_write_whose_data_is_still_asked_for_when_a_reset_is_told_keeps_its_session() {
    /// More than may be sent unasked.
    const LEN: usize = 768 << 10;
    let site = Site::new(Foreign::new(Claims::default()));
    site.run(async |disk, foreign| {
        let (logins, attempts) = (foreign.logins.get(), foreign.attempts.get());
        for round in 1..=20 {
            foreign.attentions.borrow_mut().insert(1, RESET);
            let writer = disk.clone();
            let data: Payload = Buf::copy_of(&[round; LEN]).into();
            let writing = spawn(async move { writer.write(0, data, Durability::Cached).await });
            // It is sent before the read.
            task::yield_now().await;
            disk.read(LEN as u64, 512).await.expect("it is sent again");
            writing.await.expect("it is sent again");
            let read = disk.read(0, LEN).await.expect("a read").to_vec();
            assert!(read.iter().all(|&byte| byte == round), "{round}");
        }
        assert_eq!(foreign.logins.get(), logins, "no session is lost");
        assert_eq!(foreign.attempts.get(), attempts);
        disk.flush().await.expect("nothing is lost");
    });
}
