//! A volatile write cache that appears while the volume is open, which needs flushes that nobody sends.

use engine::{Buf, Payload};

use super::*;

fn block() -> Payload {
    Buf::copy_of(&[1; 512]).into()
}

/// Opens a disk whose target says `writes_through`, runs `change`, and reads. Returns the outcome of a write and of a
/// flush.
fn after(
    writes_through: bool,
    change: impl FnOnce(&Foreign),
) -> (crate::Result<()>, crate::Result<()>) {
    let foreign = Foreign::new(Claims::default());
    foreign.writes_through.set(writes_through);
    let mut outcome = None;
    foreign.with(async |disk, foreign| {
        assert_eq!(disk.shape().volatile_cache, !writes_through);
        let written = disk.write(0, block(), Durability::Cached).await;
        written.expect("a write");
        change(foreign);
        disk.read(0, 512).await.expect("reads go on");
        let written = disk.write(0, block(), Durability::Cached).await;
        outcome = Some((written, disk.flush().await));
    });
    outcome.expect("the test has run")
}

const MODE_PARAMETERS_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x2a, 0x01];
const I_T_NEXUS_LOSS: [u8; 3] = [UNIT_ATTENTION, 0x29, 0x07];

#[test]
fn a_cache_that_a_later_session_finds_fails_writes_and_flushes() {
    let (written, flushed) = after(true, |foreign| {
        foreign.writes_through.set(false);
        foreign.drop_connections();
    });
    for failed in [written, flushed] {
        let error = failed.expect_err("nothing flushes the cache");
        assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
        let said = "open the volume again";
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn a_cache_that_a_unit_attention_tells_of_fails_writes_and_flushes() {
    for attention in [MODE_PARAMETERS_CHANGED, I_T_NEXUS_LOSS] {
        let (written, flushed) = after(true, |foreign| {
            foreign.writes_through.set(false);
            foreign.answer(once(attention));
        });
        for failed in [written, flushed] {
            let error = failed.expect_err("nothing flushes the cache");
            assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
        }
    }
}

#[test]
fn a_cache_that_stays_as_it_was_or_goes_fails_nothing() {
    for (writes_through, later) in [(true, true), (false, false), (false, true)] {
        for attention in [None, Some(MODE_PARAMETERS_CHANGED)] {
            let (written, flushed) = after(writes_through, |foreign| {
                foreign.writes_through.set(later);
                match attention {
                    None => foreign.drop_connections(),
                    Some(attention) => foreign.answer(once(attention)),
                }
            });
            written.expect("it is written as before");
            flushed.expect("it is flushed as before");
        }
    }
}
