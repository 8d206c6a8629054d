//! The LOGICAL UNIT RESET that ends the writes of a lost path: when it is sent, whom it holds up, and what the target
//! reports because of it.

use engine::spawn;

use super::{
    paths::{begin_late_write, block, designators, named, path, with_second, with_two_paths},
    *,
};

const RESET: [u8; 3] = [UNIT_ATTENTION, 0x29, 0x00];
const TEST_UNIT_READY: u8 = 0x00;
const WRITE_10: u8 = 0x2a;
const REFUSE: AtLogin = AtLogin::Refuse(iscsi::LoginStatus::SERVICE_UNAVAILABLE);

/// Waits until the target has been sent so many resets.
async fn resets(foreign: &Foreign, count: u64) {
    while foreign.resets.get() < count {
        time::sleep(Duration::from_millis(10)).await;
    }
}

/// A site with three paths, each to a portal group of its own.
fn with_three_paths(test: impl AsyncFnOnce(&Rc<IscsiDisk>, &Foreign)) {
    let site = Site::new(Foreign::new(named()));
    let third = site.serve_third();
    let mut config = with_second(&site, site.host.addr(OTHER_PORT));
    config.multipath.more.push(path(third, 3));
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config).await.expect("three logins");
        assert_eq!(disk.live_paths(), 3);
        test(&disk, &site.foreign).await;
        disk.close().await;
    });
}

#[test]
fn another_disk_is_not_reset() {
    with_two_paths(async |disk, foreign| {
        let writing = begin_late_write(disk, foreign).await;
        while disk.live_paths() > 1 {
            time::sleep(Duration::from_millis(10)).await;
        }
        foreign.designators.replace(Some(designators(2)));
        time::sleep(Duration::from_secs(5)).await;
        assert_eq!(foreign.resets.get(), 0);
        assert_eq!(disk.live_paths(), 0, "no path leads to the disk");
        foreign.designators.take();
        foreign.at_login(|_| AtLogin::LetIn);
        writing.await.expect("it is the disk again");
    });
}

/// Two paths are lost with a write in flight each. The target refuses a reset over the third one, which then is not
/// tried again at once.
#[test]
fn a_reset_that_was_refused_is_not_tried_again_at_once_for_another_path() {
    const NOT_SUPPORTED: u8 = 5;
    with_three_paths(async |disk, foreign| {
        foreign.reset_response.set(NOT_SUPPORTED);
        let mut late = 2;
        foreign.answer(move |cdb| {
            let is_late = cdb[0] == WRITE_10 && late > 0;
            late -= u32::from(is_late);
            is_late.then_some(Instead::Late)
        });
        let write = |at: u64| {
            let disk = disk.clone();
            spawn(async move { disk.write(at, block(1), Durability::Cached).await })
        };
        let writing = [write(0), write(512)];
        foreign.holds(2).await;
        foreign.at_login(|_| REFUSE);
        resets(foreign, 1).await;
        time::sleep(Duration::from_millis(500)).await;
        assert_eq!((disk.live_paths(), foreign.resets.get()), (1, 1));
        foreign.reset_response.set(0);
        for writing in writing {
            writing.await.expect("the lost writes are ended");
        }
        foreign.at_login(|_| AtLogin::LetIn);
    });
}

/// The only path is lost with a write in flight and redirected to a target port where no reset is answered.
#[test]
fn a_reset_is_tried_without_a_pause_where_it_holds_nobody_up() {
    let site = Site::new(Foreign::new(Claims::default()));
    let other = site.host.addr(OTHER_PORT).to_string();
    site.run(async |disk, foreign| {
        foreign.ignores_resets.set(true);
        let writing = begin_late_write(disk, foreign).await;
        foreign.at_login(move |Group(tag)| match tag {
            1 => AtLogin::Redirect(other.clone()),
            _ => AtLogin::LetIn,
        });
        foreign.drop_connections();
        time::sleep(Duration::from_secs(300)).await;
        // Each takes as long as a request may.
        let resets = foreign.resets.get();
        assert!(resets >= 20, "{resets}");
        writing.await.expect_err("nothing has ended it");
        foreign.ignores_resets.set(false);
        let written = disk.write(0, block(2), Durability::Cached).await;
        written.expect("the lost write is ended");
    });
}

/// The target answers the reset, and nothing after it on that path.
#[test]
fn nothing_is_held_back_any_more_once_the_reset_is_answered() {
    with_two_paths(async |disk, foreign| {
        let writing = begin_late_write(disk, foreign).await;
        while disk.live_paths() > 1 {
            time::sleep(Duration::from_millis(10)).await;
        }
        foreign.answer(|cdb| (cdb[0] == TEST_UNIT_READY).then_some(Instead::Late));
        resets(foreign, 1).await;
        // It takes the unit attention.
        disk.read(0, 512).await.expect("a path works");
        let read = time::timeout(Duration::from_secs(5), disk.read(0, 512)).await;
        read.expect("nobody waits for it").expect("a path works");
        foreign.answer(|_| None);
        foreign.at_login(|_| AtLogin::LetIn);
        writing.await.expect("it is sent again");
    });
}

/// A reset reported after a reset of ours that was not done is somebody else's, or a restart.
#[test]
fn a_reset_that_was_not_answered_hides_no_restart() {
    with_two_paths(async |disk, foreign| {
        let written = disk.write(512, block(1), Durability::Cached).await;
        written.expect("a write that is not durable yet");
        foreign.ignores_resets.set(true);
        let writing = begin_late_write(disk, foreign).await;
        resets(foreign, 1).await;
        // Our initiator waits for an answer as long as for one to a command.
        time::sleep(Duration::from_secs(11)).await;
        foreign.answer(once(RESET));
        disk.read(0, 512).await.expect("it is sent again");
        foreign.ignores_resets.set(false);
        foreign.at_login(|_| AtLogin::LetIn);
        let error = disk.flush().await.expect_err("the write may be lost");
        assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
        drop(writing.await);
    });
}

/// The target reports our reset to one of the two paths that are left, and a restart to `group` much later.
fn restart_after_our_reset(group: u16) {
    with_three_paths(async |disk, foreign| {
        let writing = begin_late_write(disk, foreign).await;
        writing.await.expect("it is sent again");
        assert_eq!(foreign.resets.get(), 1);
        foreign.at_login(|_| AtLogin::LetIn);
        while disk.live_paths() < 3 {
            time::sleep(Duration::from_millis(10)).await;
        }
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("a write that is not durable yet");
        foreign.attentions.borrow_mut().insert(group, RESET);
        for _ in 0..3 {
            disk.read(0, 512).await.expect("it is sent again");
        }
        let error = disk.flush().await.expect_err("the write may be lost");
        assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
    });
}

#[test]
fn a_reset_of_ours_that_a_path_is_not_told_of_hides_no_restart() {
    // The write was lost with the second path.
    for group in [1, 3] {
        restart_after_our_reset(group);
    }
}

/// The unit attention for a reset stands for any others that the target has discarded.
#[test]
fn our_own_reset_leaves_the_same_doubts_as_any_other() {
    let site = Site::new(Foreign::new(Claims::default()));
    let other = site.host.addr(OTHER_PORT).to_string();
    site.run(async |disk, foreign| {
        let writing = begin_late_write(disk, foreign).await;
        foreign.at_login(move |Group(tag)| match tag {
            1 => AtLogin::Redirect(other.clone()),
            _ => AtLogin::LetIn,
        });
        foreign.drop_connections();
        let len_blocks = 2 * foreign.len_blocks.get();
        foreign.len_blocks.set(len_blocks);
        writing.await.expect("it was sent again");
        assert_eq!(foreign.resets.get(), 1);
        assert_eq!(disk.shape().len.bytes(), 512 * len_blocks);
    });
}
